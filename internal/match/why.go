package match

import (
	"fmt"
	"slices"
)

// Explanation is an Outcome with what led to it, for people.
type Explanation struct {
	Outcome
	// Why is a few words that name the fields of the limit which decided, such as
	// "match[1]", "except[0]" and "overrides[2]: Exempt". It repeats nothing of the
	// request.
	Why string
	// Values are those of the key's parts, in their order, as Named takes them; ""
	// is one that the request lacks. They may be secret. There are none where the
	// limit leaves the request alone for what its match and except say.
	Values []string
}

// Explain answers as Evaluate does, and tells why.
func (l *Limit) Explain(r *Request) Explanation {
	e := Explanation{Outcome: l.Evaluate(r)}
	why, applies := l.whyApplies(r)
	if e.Why = why; applies {
		e.Values = l.texts(r, "")
		e.Why = l.whyCounted(e)
	}
	if e.Err != nil {
		e.Why += fmt.Sprintf(" (took the safe side: %v)", e.Err)
	}
	return e
}

// whyApplies is about match and except.
func (l *Limit) whyApplies(r *Request) (why string, applies bool) {
	var faults Outcome // told by Evaluate
	why = "every request"
	if len(l.match) > 0 {
		i := firstToHold(l.match, r, true, &faults)
		if i == none {
			return "no match applies", false
		}
		why = fmt.Sprintf("match[%d]", i)
	}
	if i := firstToHold(l.except, r, false, &faults); i != none {
		return fmt.Sprintf("except[%d]", i), false
	}
	return why, true
}

// whyCounted is about the key and the overrides of a request that the limit is for.
func (l *Limit) whyCounted(e Explanation) string {
	missing := slices.Index(e.Values, "")
	switch {
	case e.Override != NoOverride:
		return fmt.Sprintf("overrides[%d]: %s", e.Override, l.overrides.actions[e.Override])
	case missing >= 0:
		return fmt.Sprintf("%s, and the request lacks key[%d] (onMissingKey: %s)", e.Why, missing, l.key.onMissing)
	default:
		return e.Why
	}
}
