package simulate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Decider decides requests in the order of the trace.
type Decider interface {
	// Decide answers one request. The decision's Limits may be used again by
	// the next call.
	Decide(ctx context.Context, r *Request) (Decision, error)
}

// Decision is the answer to one request.
type Decision struct {
	Allowed bool
	// Granted is the units that the request got, or gave back for a Refund.
	Granted int64
	// Limit that refused; of several, the one to wait for longest. When the
	// request is allowed, the one with the fewest units left. Empty when the
	// request meets none.
	Limit string
	// Counted says that Limit was asked, so that the figures below are known.
	Counted bool
	// Remaining units of Limit after the decision.
	Remaining int64
	// RetryAfter is the time until the same request can be admitted at the
	// earliest; 0 when it is allowed, and when it can never be.
	RetryAfter time.Duration
	// ResetAfter is the time until Limit is back at its full number.
	ResetAfter time.Duration
	// Reason of a refusal.
	Reason string
	// Limits are all that the request met.
	Limits []LimitDecision
}

// LimitDecision is one limit's own answer.
type LimitDecision struct {
	// Index of the limit in Engine.Limits.
	Index   int
	Allowed bool
	// Key is match.Outcome.Key: empty where the request was refused for want of one.
	Key string
}

// Observer is told of every decision, in order.
type Observer interface {
	Decided(r *Request, d *Decision)
}

// Run decides the requests of a trace and writes a line for each. It ends with
// the first line that is not valid, which is a *LineError, or that cannot be
// decided; the lines for the requests before are written all the same.
func Run(ctx context.Context, t *Trace, decider Decider, out io.Writer, o Observer) error {
	answers := NewAnswers(out)
	err := run(ctx, t, decider, answers, o)
	if failure := answers.Flush(); failure != nil && !errors.Is(err, errors.Unwrap(failure)) {
		err = errors.Join(err, failure)
	}
	return err
}

func run(ctx context.Context, t *Trace, decider Decider, out *Answers, o Observer) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		r, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		d, err := decider.Decide(ctx, r)
		if err != nil {
			return fmt.Errorf("decide %s:%d: %w", t.name, t.line, err)
		}
		if err := out.Write(0, r.At, &d); err != nil {
			return err
		}
		o.Decided(r, &d)
		if t.waits() { // whoever sends requests one by one sees the answers so
			if err := out.Flush(); err != nil {
				return err
			}
		}
	}
}
