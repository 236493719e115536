package convert

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/tallyman-dev/tallyman/internal/match"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

// Options say what policies are called and which pods they are for.
type Options struct {
	// Name of the policies; empty to name each after its domain. With several domains
	// that follows the name.
	Name string
	// Namespace is empty to say nothing of it.
	Namespace string
	// Selector has the labels of the pods; nil for all pods of the namespace.
	Selector map[string]string
}

// Result is what becomes of a configuration.
type Result struct {
	Policies []Policy
	// Lost is what policies do not have, in the order of the inputs.
	Lost []Finding
}

// Policy is one RateLimitPolicy.
type Policy struct {
	Name, Namespace string
	Spec            policy.Spec
	// origins are where the limits come from.
	origins []place
}

// Convert makes policies of the inputs. Its error has a Finding for each thing that
// the rate limit service would not load.
func Convert(inputs []Input, o Options) (*Result, error) {
	var p parser
	for _, in := range inputs {
		p.read(in)
	}
	if len(p.errs) == 0 && len(p.domains) == 0 {
		p.errs = append(p.errs, errors.New("there is no configuration of a rate limit service: write one with domain and descriptors"))
	}
	if len(p.errs) > 0 {
		return nil, errors.Join(p.errs...)
	}
	out := &Result{Lost: p.lost}
	policyNames := names{}
	for _, d := range p.domains {
		c := converter{domain: d.name, names: names{}, overrides: map[*descriptor][]policy.Override{}, merged: map[*descriptor]bool{}}
		c.level(nil, d.descriptors)
		out.Lost = append(out.Lost, c.lost...)
		name := o.policyName(d.name, len(p.domains) > 1)
		out.add(policyNames, o, name, "", c.enforced)
		out.add(policyNames, o, name+"-shadow", policy.Shadow, c.shadowed)
	}
	sortFindings(inputs, out.Lost)
	return out, nil
}

// add adds as many policies as limits need.
func (r *Result) add(taken names, o Options, name string, enforcement policy.Enforcement, limits []converted) {
	for some := range slices.Chunk(limits, policy.MaxLimits) {
		p := Policy{
			Name: taken.unique(name, maxPolicyName), Namespace: o.Namespace,
			Spec: policy.Spec{Selector: &policy.Selector{MatchLabels: o.Selector}, Enforcement: enforcement},
		}
		for _, c := range some {
			p.Spec.Limits = append(p.Spec.Limits, c.limit)
			p.origins = append(p.origins, c.origin)
		}
		r.Policies = append(r.Policies, p)
	}
}

// Limits is how many there are in all policies.
func (r *Result) Limits() (n int) {
	for i := range r.Policies {
		n += len(r.Policies[i].Spec.Limits)
	}
	return n
}

// converted is a limit and where it comes from.
type converted struct {
	limit  policy.Limit
	origin place
}

// converter makes limits of a domain's descriptors.
type converter struct {
	domain             string
	names              names
	enforced, shadowed []converted
	// overrides are those of a descriptor for any value, and merged the descriptors
	// that they stand for.
	overrides map[*descriptor][]policy.Override
	merged    map[*descriptor]bool
	lost      []Finding
}

// level converts a list of descriptors to which the path leads, and all below it.
func (c *converter) level(to path, level []*descriptor) {
	for _, d := range level {
		if d.isAny() && d.limits() {
			c.merge(to.to(d, level))
		}
	}
	for _, d := range level {
		if prefix, isPattern := strings.CutSuffix(d.key, "*"); isPattern && d.isAny() {
			c.lose(d.found("the key is for all keys that begin with %q, and is lost with all below it: write them out", prefix))
			continue
		}
		p := to.to(d, level)
		if d.limits() && !c.merged[d] {
			c.limit(p)
		}
		c.level(p, d.children)
	}
}

// limit converts the limit at the end of a path.
func (c *converter) limit(p path) {
	last := p.last()
	l := policy.Limit{
		Name:      c.names.limit(p),
		Requests:  new(int64(last.limit.requests)),
		Window:    last.limit.window,
		Algorithm: policy.FixedWindow,
		Match:     []policy.Match{p.match(c.domain)},
		Except:    p.except(c.merged),
		Key:       p.keyParts(),
		Overrides: c.overrides[last.descriptor],
	}
	if err := check(l); err != nil {
		c.lose(last.limit.found("no policy can have this limit, and it is lost: %v", err))
		return
	}
	into := &c.enforced
	if last.shadow {
		into = &c.shadowed
	}
	*into = append(*into, converted{l, last.place})
}

func (c *converter) lose(f Finding) { c.lost = append(c.lost, f) }

// check says why a policy cannot have a limit.
func check(l policy.Limit) error {
	text, err := json.Marshal(policy.Spec{Selector: &policy.Selector{}, Limits: []policy.Limit{l}})
	if err != nil {
		return err
	}
	spec, err := policy.DecodeSpec(text)
	if err != nil {
		return err
	}
	_, err = match.Compile(&spec)
	return err
}

// merge has a limit for any value take over the descriptors for single values beside
// it, as overrides, where it counts by nothing but the value and in the same window.
func (c *converter) merge(p path) {
	last := p.last()
	parts := p.keyParts()
	if len(parts) != 1 {
		return
	}
	var exempt policy.Override
	limited := []policy.Override{}
	for _, d := range last.siblings {
		if !d.isSingle() || d.key != last.key || !isOverrideKey(parts[0], d.value) || fitsAPattern(d, last) {
			continue
		}
		switch {
		case !d.limits():
			exempt.Action = policy.OverrideExempt
			c.merged[d] = addKey(&exempt, d.value)
		case d.limit.window == last.limit.window && d.shadow == last.shadow:
			c.merged[d] = addLimit(&limited, d)
		}
	}
	if len(exempt.Keys) > 0 {
		limited = append(limited, exempt)
	}
	if len(limited) > 0 {
		c.overrides[last.descriptor] = limited
	}
}

// isSingle says whether a descriptor is for one value.
func (d *descriptor) isSingle() bool {
	_, isPattern := d.prefix()
	return !d.isAny() && !isPattern
}

// fitsAPattern says whether the limit for any value leaves a single one to a pattern,
// before it comes to overrides.
func fitsAPattern(d *descriptor, anyValue step) bool {
	return slices.ContainsFunc(anyValue.siblings, func(other *descriptor) bool {
		prefix, isPattern := other.prefix()
		return isPattern && other.key == d.key && strings.HasPrefix(d.value, prefix)
	})
}

// isOverrideKey says whether an override can name the value: of clientIP, it has to be
// an address.
func isOverrideKey(part policy.KeyPart, value string) bool {
	if part.ClientIP == nil {
		return true
	}
	addr, err := netip.ParseAddr(value)
	return err == nil && addr.Zone() == ""
}

// addKey adds a value to an override, while there is room.
func addKey(o *policy.Override, value string) bool {
	if len(o.Keys) >= policy.MaxOverrideKeys {
		return false
	}
	o.Keys = append(o.Keys, value)
	return true
}

// addLimit adds a value to the override with its number, while there is room, which is
// also kept for one more with exemptions.
func addLimit(all *[]policy.Override, d *descriptor) bool {
	requests := int64(d.limit.requests)
	for i := range *all {
		if o := &(*all)[i]; *o.Requests == requests && addKey(o, d.value) {
			return true
		}
	}
	if len(*all) >= policy.MaxOverrides-1 {
		return false
	}
	*all = append(*all, policy.Override{Keys: []string{d.value}, Requests: &requests})
	return true
}
