package limiter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// ErrInvalidHit means that a hit is outside the bounds that Limit and Hit
// state. Nothing was taken, and no store was asked.
var ErrInvalidHit = errors.New("invalid hit")

// maxWindow is above the longest duration that GEP-2257 can write, 45.7 years.
// Twice that from now is still an exact number of microseconds in Lua.
const maxWindow = 50 * 365 * 24 * time.Hour

// Limit is the rule of one counter, in numbers. It is a value: comparable and
// safe to share.
type Limit struct {
	Algorithm policy.Algorithm
	// Requests admitted per Window, 0..2^53-1; 0 refuses everything. A
	// SlidingLog stores every hit and has at most policy.MaxSlidingLogRequests.
	Requests int64
	// Window is 1 ms..50 years and a whole number of milliseconds.
	Window time.Duration
	// Burst is the capacity of a TokenBucket, 1..2^53-1; other algorithms
	// ignore it. A bucket that takes more than 142 years (2^52 µs) to fill has
	// the capacity that fills in 142 years.
	Burst int64
}

// Hit asks one counter for one request.
type Hit struct {
	Limit Limit
	// Key of the counter, as CounterKey makes it. The hits of one call have
	// different keys.
	Key string
	// Cost in units of the limit, 0 or more. A cost of 0 is always admitted,
	// except by a limit of 0, and creates no key.
	Cost int64
	// Shadow hits never stand in the way of the others: they are counted, all
	// together or not at all, when the others are admitted.
	Shadow bool
}

// Reason says why a hit was refused; it is empty when the hit is allowed.
type Reason string

const (
	// LimitExceeded means that the units are used up for now.
	LimitExceeded Reason = "LimitExceeded"
	// CostExceedsLimit means that the cost can never be admitted: there is no
	// time at which to try again. A limit of 0 refuses every cost so.
	CostExceedsLimit Reason = "CostExceedsLimit"
)

// Result is one counter's answer.
type Result struct {
	// Allowed says whether this counter has room for the hit. Units are taken
	// only when every hit of its group (shadow or not) is allowed.
	Allowed bool
	Reason  Reason
	// Remaining units after the call, 0..limit (0..burst for a TokenBucket).
	Remaining int64
	// RetryAfter is the time until the same hit can be admitted at the
	// earliest if nobody else takes units; 0 when allowed, and when it can
	// never be. It is exact to the microsecond: the hit is admitted then, and
	// not one microsecond earlier.
	RetryAfter time.Duration
	// ResetAfter is the time until the counter is back at its full limit.
	ResetAfter time.Duration
}

// Store counts. Implementations are safe for concurrent use.
type Store interface {
	// Take decides the hits of one request in one step, all or nothing: units
	// are taken from every counter or from none. Results are in the order of
	// the hits. An error other than ErrInvalidHit means that the outcome is not
	// known; units may have been taken, and the call must not be repeated for
	// the same request.
	Take(ctx context.Context, hits []Hit) ([]Result, error)
	// Peek answers as Take would and takes nothing.
	Peek(ctx context.Context, hits []Hit) ([]Result, error)
}

func (h *Hit) validate() error {
	l := h.Limit
	switch {
	case h.Cost < 0:
		return fmt.Errorf("%w: cost %d is negative", ErrInvalidHit, h.Cost)
	case l.Requests < 0 || l.Requests > policy.MaxInteger:
		return fmt.Errorf("%w: %d requests are not in 0..2^53-1", ErrInvalidHit, l.Requests)
	case l.Window < time.Millisecond || l.Window > maxWindow || l.Window%time.Millisecond != 0:
		return fmt.Errorf("%w: window %v is not a whole number of milliseconds in 1ms..%v", ErrInvalidHit, l.Window, maxWindow)
	case l.Algorithm == policy.TokenBucket && (l.Burst < 1 || l.Burst > policy.MaxInteger):
		return fmt.Errorf("%w: burst %d is not in 1..2^53-1", ErrInvalidHit, l.Burst)
	case l.Algorithm == policy.SlidingLog && l.Requests > policy.MaxSlidingLogRequests:
		return fmt.Errorf("%w: %d requests are more than the %d that a SlidingLog can store",
			ErrInvalidHit, l.Requests, policy.MaxSlidingLogRequests)
	}
	return nil
}
