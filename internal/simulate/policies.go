package simulate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tallyman-dev/tallyman/internal/limiter"
	"github.com/tallyman-dev/tallyman/internal/match"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

// Policies are what an Engine enforces. The zero value is none.
type Policies struct{ limits []limit }

// limit is one limit of a policy, prepared.
type limit struct {
	LimitInfo
	namespace, policy string
	matcher           *match.Limit
	rule              *limiter.Rule
	// overrides are the rules of the limit's overrides, nil for those that do
	// not count.
	overrides []*limiter.Rule
}

// Add adds a policy, whose spec has its defaults and is valid. Which pods it
// selects does not matter: there are none.
func (p *Policies) Add(d policy.Definition) error {
	if err := d.CheckNames(); err != nil {
		return err
	}
	compiled, err := match.Compile(&d.Spec)
	if err != nil {
		return err
	}
	for i, matcher := range compiled.Limits {
		l := limit{
			LimitInfo: LimitInfo{Name: matcher.Name, Shadow: d.Spec.Enforcement == policy.Shadow},
			namespace: d.Namespace, policy: d.Name, matcher: matcher,
		}
		if err := l.prepare(&d.Spec.Limits[i]); err != nil {
			return fmt.Errorf("spec.limits[%d]: %w", i, err)
		}
		p.limits = append(p.limits, l)
	}
	return nil
}

// sorted are the limits in the order in which the sidecar has them, each with a
// name that no other has: its own one if that will do.
func (p *Policies) sorted() []limit {
	limits := slices.Clone(p.limits)
	slices.SortStableFunc(limits, func(a, b limit) int { return strings.Compare(a.policy, b.policy) })
	for _, qualified := range []func(*limit) string{
		func(l *limit) string { return l.policy + "/" + l.matcher.Name },
		func(l *limit) string { return l.namespace + "/" + l.policy + "/" + l.matcher.Name },
	} {
		named := map[string]int{}
		for i := range limits {
			named[limits[i].Name]++
		}
		for i := range limits {
			if named[limits[i].Name] > 1 {
				limits[i].Name = qualified(&limits[i])
			}
		}
	}
	return limits
}

// prepare makes the rules. Every limit is counted as if its distribution were
// Exact: with one process, all are.
func (l *limit) prepare(from *policy.Limit) error {
	var err error
	if l.rule, err = limiter.PrepareLimit(from); err != nil {
		return err
	}
	l.overrides, err = limiter.PrepareOverrides(l.rule, from.Overrides)
	return err
}

// ruleFor is the rule that a request with this outcome is counted by.
func (l *limit) ruleFor(o *match.Outcome) *limiter.Rule {
	if o.Override != match.NoOverride {
		return l.overrides[o.Override]
	}
	return l.rule
}
