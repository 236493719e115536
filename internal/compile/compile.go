// Package compile turns the RateLimitPolicies of a namespace into the
// definitions that enforcers read, and facts about the store and the pods into
// the policies' statuses.
//
// It is pure: no clock but the conditions' transition times, no API server, no
// store. It must not import a client of either.
package compile

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/lint"
	"github.com/tallyman-dev/tallyman/internal/match"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

// Targets has the objects that policies refer to and that exist, with the
// selector of their pods: nil for a Service without one.
type Targets map[policy.TargetRef]*policy.Selector

// Verdict says whether a policy is accepted.
type Verdict struct {
	// Accepted is the condition of that type.
	Accepted metav1.Condition
	// Definition is what enforcers read; nil when the policy is not accepted.
	Definition *policy.Definition
	// Evadable is the message of the condition of that type; empty for none.
	Evadable string
}

// Verdicts are in the order of the policies.
type Verdicts []Verdict

// Compiler judges the policies of one namespace again and again. It reads a spec
// once for each generation: expressions take long to compile. The zero value has
// read none. It is not safe for concurrent use.
type Compiler struct {
	readings map[string]reading // by name
}

// reading is what there is to know of a spec by itself.
type reading struct {
	uid        types.UID
	generation int64

	spec     policy.Spec
	evadable string
	err      error
}

// Namespace judges the policies of one namespace.
//
// A policy that is not accepted has no definition, even if an earlier
// generation of it was accepted: what is enforced follows from the objects as
// they are and from nothing else, so that a restart of the manager or a flushed
// store cannot change it, and Accepted=False always means "not enforced". The
// schema refuses most invalid edits before they get here.
func (c *Compiler) Namespace(policies []v1alpha1.RateLimitPolicy, targets Targets) Verdicts {
	verdicts, readings := make(Verdicts, len(policies)), make(map[string]reading, len(policies))
	for i := range policies {
		p := &policies[i]
		r, known := c.readings[p.Name]
		if !known || r.uid != p.UID || r.generation != p.Generation {
			r = read(p)
		}
		verdicts[i], readings[p.Name] = r.judge(p, targets), r
	}
	c.readings = readings
	return verdicts
}

// Definitions are those of the accepted policies.
func (v Verdicts) Definitions() []policy.Definition {
	var accepted []policy.Definition
	for _, verdict := range v {
		if verdict.Definition != nil {
			accepted = append(accepted, *verdict.Definition)
		}
	}
	return accepted
}

func read(p *v1alpha1.RateLimitPolicy) reading {
	spec, compiled, err := decode(&p.Spec)
	r := reading{uid: p.UID, generation: p.Generation, spec: spec, err: err}
	if err == nil {
		r.evadable = lint.Evadable(&spec, compiled)
	}
	return r
}

func (r *reading) judge(p *v1alpha1.RateLimitPolicy, targets Targets) Verdict {
	if r.err != nil {
		return refused(p, v1alpha1.ReasonInvalid, faults(r.err))
	}
	selectors, missing, invalid := resolve(&r.spec, targets)
	if len(invalid) > 0 {
		return refused(p, v1alpha1.ReasonInvalid, faults(invalid))
	}
	if len(missing) > 0 {
		return refused(p, v1alpha1.ReasonTargetNotFound, missing)
	}
	return Verdict{
		Accepted: condition(p, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, describe(&r.spec)),
		Definition: &policy.Definition{
			Schema:     policy.Schema,
			Namespace:  p.Namespace,
			Name:       p.Name,
			UID:        string(p.UID),
			Generation: p.Generation,
			Selectors:  selectors,
			Spec:       r.spec,
		},
		Evadable: r.evadable,
	}
}

// decode reads the spec as an enforcer will, and compiles its expressions.
func decode(s *v1alpha1.RateLimitPolicySpec) (policy.Spec, *match.Policy, error) {
	data, err := json.Marshal(s)
	if err != nil {
		return policy.Spec{}, nil, err
	}
	spec, err := policy.DecodeSpec(data)
	if err != nil {
		return spec, nil, err
	}
	compiled, err := match.Compile(&spec)
	return spec, compiled, err
}

// resolve finds the selectors of the pods, and names the targets that do not
// exist and those that have no selector.
func resolve(spec *policy.Spec, targets Targets) (selectors []policy.Selector, missing []string, invalid policy.Errors) {
	if spec.Selector != nil {
		return []policy.Selector{*spec.Selector}, nil, nil
	}
	for i, ref := range spec.TargetRefs {
		selector, exists := targets[ref]
		switch {
		case !exists:
			missing = append(missing, fmt.Sprintf("%s %q does not exist in this namespace", ref.Kind, ref.Name))
		case selector == nil:
			invalid.Add(fmt.Sprintf("targetRefs[%d]", i),
				"%s %q has no selector and so no pods of its own: choose the pods with spec.selector instead", ref.Kind, ref.Name)
		default:
			selectors = append(selectors, *selector)
		}
	}
	return selectors, missing, invalid
}

func refused(p *v1alpha1.RateLimitPolicy, reason string, why []string) Verdict {
	message := "The policy is not enforced, and neither is an earlier generation of it: " + list(why, "; ", len(why))
	return Verdict{Accepted: condition(p, v1alpha1.ConditionAccepted, metav1.ConditionFalse, reason, message)}
}

// faults is one string for each fault of a spec.
func faults(err error) []string {
	found, ok := errors.AsType[policy.Errors](err)
	if !ok {
		return []string{err.Error()}
	}
	all := make([]string, len(found))
	for i, fault := range found {
		all[i] = fault.Error()
	}
	return all
}

func describe(spec *policy.Spec) string {
	message := "The policy is valid: " + count(len(spec.Limits), "limit")
	if spec.Enforcement == policy.Shadow {
		message += ", in shadow: requests are counted and none is refused"
	}
	return message
}

// count is "1 pod", "2 pods".
func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// maxListBytes bounds the lists in messages. The API server takes 32 KiB, but a
// person reads them, and every status is held in memory by every watcher.
const maxListBytes = 1024

// list joins at most n items of together at most maxListBytes, and says how
// many it leaves out.
func list(items []string, separator string, n int) string {
	var b strings.Builder
	for i, item := range items {
		if i > 0 && (i == n || b.Len()+len(separator)+len(item) > maxListBytes) {
			fmt.Fprintf(&b, "%sand %d more", separator, len(items)-i)
			break
		}
		if i > 0 {
			b.WriteString(separator)
		}
		b.WriteString(cut(item, maxListBytes))
	}
	return b.String()
}

// cut shortens a text to n bytes without splitting a character.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + "…"
}
