package limiter

import (
	"context"
	"slices"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// elsewhere sends a call to where its hits are counted: the store or, those of a
// Split, this process.
func (e *Engine) elsewhere(ctx context.Context, c *Call) error {
	if !slices.ContainsFunc(c.Hits, isSplit) {
		return e.shared.Do(ctx, c)
	}
	return e.inParts(ctx, c)
}

func isSplit(h Hit) bool { return h.Rule.distribution.Mode == policy.Split }

// inParts carries out a call some of whose hits are of a Split: these one by one,
// and then all others in one call of the store. What was reserved of the former is
// given back when a later one refuses or fails.
func (e *Engine) inParts(ctx context.Context, c *Call) error {
	results := slices.Repeat([]Result{{Allowed: true, Unknown: true}}, len(c.Hits))
	granted := c.count()
	parts := partsOf(c)
	for i := range parts {
		part := &parts[i]
		err := e.doPart(ctx, &part.Call)
		if c.Op == Reserve && (err != nil || part.Granted == 0) {
			e.unreserve(parts[:i])
		}
		if err != nil {
			return err
		}
		granted = min(granted, part.Granted)
		for k, r := range part.Results {
			results[part.places[k]] = r
		}
		if c.Op == Reserve && granted == 0 {
			break
		}
	}
	c.Granted, c.Results = granted, results
	return nil
}

func (e *Engine) doPart(ctx context.Context, part *Call) error {
	if isSplit(part.Hits[0]) {
		return e.splits.do(part)
	}
	return e.shared.Do(ctx, part)
}

// callPart is a call about some of the hits of another, with their places in it.
type callPart struct {
	Call
	places []int
}

// partsOf are the parts of a call: one for each hit of a Split, and the last one
// for all others, if there are any.
func partsOf(c *Call) []callPart {
	var parts []callPart
	rest := callPart{Call: *c}
	rest.Hits, rest.Results = nil, nil
	for i, h := range c.Hits {
		if !isSplit(h) {
			rest.Hits, rest.places = append(rest.Hits, h), append(rest.places, i)
			continue
		}
		part := callPart{Call: *c, places: []int{i}}
		part.Hits, part.Results = []Hit{h}, nil
		parts = append(parts, part)
	}
	if len(rest.Hits) > 0 {
		parts = append(parts, rest)
	}
	return parts
}

// unreserve makes nothing of what was reserved of Splits. It fails only for what
// was not reserved either.
func (e *Engine) unreserve(parts []callPart) {
	for i := range parts {
		c, h := &parts[i].Call, parts[i].Hits[0]
		c.Op, c.Hits[0].Cost = Settle, 0
		_ = e.splits.do(c)
		if h.Rule.holdsSlots() { // to settle leaves them
			c.Op, c.Hits[0] = Refund, h
			_ = e.splits.do(c)
		}
	}
}
