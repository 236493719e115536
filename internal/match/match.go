package match

import (
	"fmt"
	"slices"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// Policy is a compiled spec. It is immutable and safe for concurrent use.
type Policy struct {
	// Limits are in the order of the spec.
	Limits []*Limit
}

// Limit is a compiled limit. It is immutable and safe for concurrent use.
type Limit struct {
	// Name is the limit's name in the spec.
	Name string

	match, except []conditions
	key           key
	overrides     overrides
	cost          cost
}

// Verdict says what a limit does with a request.
type Verdict int

const (
	// Skip leaves the request alone: it does not match, is excepted, lacks a part
	// of the key or has an override that exempts it.
	Skip Verdict = iota
	// Count charges the request to the counter of Outcome.Key.
	Count
	// Deny refuses the request, which lacks a part of the key or, where
	// Outcome.Override is not NoOverride, has an override that denies it.
	Deny
)

// NoOverride is the Outcome.Override of a request with the limit's own numbers.
const NoOverride = -1

// Outcome is what a limit says about a request.
type Outcome struct {
	Verdict Verdict
	// Key tells counters of the limit apart and is fit for a Redis hash tag:
	// never empty, never with a leading '}', at most MaxKeyLength bytes. It
	// encodes the values only, so that limits with equal values share a tag.
	// It is set when the verdict is Count.
	Key string
	// Override is the index of the limit's override that names the request's
	// key value, or NoOverride.
	Override int
	// Cost in units of the limit, 0..policy.MaxInteger, when the verdict is
	// Count.
	Cost int64
	// Err is the first thing that could not be evaluated, an *EvaluationError.
	// The verdict stands all the same.
	Err error
}

// EvaluationError says what could not be evaluated. It names the policy's
// field and holds nothing of the request, which may be secret.
type EvaluationError struct {
	// Path of the field below spec, such as limits[0].match[1].expression.
	Path   string
	Reason string
}

func (e *EvaluationError) Error() string {
	return fmt.Sprintf("evaluate spec.%s: %s", e.Path, e.Reason)
}

func tooLong(path string) *EvaluationError {
	return &EvaluationError{Path: path, Reason: errTooLong.Error()}
}

// record keeps the first fault.
func (o *Outcome) record(fault *EvaluationError) {
	if o.Err == nil && fault != nil {
		o.Err = fault
	}
}

// Compile prepares a spec that has its defaults and is valid. The error is
// policy.Errors, with what only compiling can find: regular expressions,
// templates and CEL expressions that are wrong.
func Compile(spec *policy.Spec) (*Policy, error) {
	var c compiler
	p := &Policy{Limits: make([]*Limit, len(spec.Limits))}
	for i := range spec.Limits {
		p.Limits[i] = c.limit(fmt.Sprintf("limits[%d]", i), &spec.Limits[i])
	}
	if len(c.errs) > 0 {
		return nil, c.errs
	}
	return p, nil
}

// compiler collects the faults of a spec while it compiles.
type compiler struct{ errs policy.Errors }

func (c *compiler) limit(path string, l *policy.Limit) *Limit {
	limit := &Limit{
		Name:   l.Name,
		match:  c.matches(path+".match", l.Match),
		except: c.matches(path+".except", l.Except),
		key:    c.key(path+".key", l),
		cost:   c.cost(path+".cost", l.Cost),
	}
	limit.overrides = newOverrides(limit.key, l.Overrides)
	return limit
}

// IsKeyChosen says whether a client that writes another value into its requests gets
// another key, and so another counter: whether the key has any part but the client's
// address.
func (l *Limit) IsKeyChosen() bool {
	return slices.ContainsFunc(l.key.parts, keyPart.isChosen)
}

// Evaluate says whether the limit counts the request, under which key and at
// which cost. It may be called concurrently for different requests.
func (l *Limit) Evaluate(r *Request) Outcome {
	o := Outcome{Override: NoOverride}
	if !l.applies(r, &o) {
		return o
	}
	o.Verdict, o.Key = l.key.of(r, &o)
	if o.Verdict == Count {
		l.overrides.apply(&o)
	}
	if o.Verdict == Count {
		o.Cost = l.cost.of(r, &o)
	}
	return o
}

func (l *Limit) applies(r *Request, o *Outcome) bool {
	if len(l.match) > 0 && firstToHold(l.match, r, true, o) == none {
		return false
	}
	return firstToHold(l.except, r, false, o) == none
}
