package limiter

import (
	"context"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// Limit is the rule of one counter, in numbers. It is a value: comparable and
// safe to share.
type Limit struct {
	Algorithm policy.Algorithm
	// Requests admitted per Window, 0..2^53-1; 0 refuses everything.
	Requests int64
	// Window is at least 1 ms and a whole number of milliseconds.
	Window time.Duration
	// Burst is the capacity of a TokenBucket, 1..2^53-1; other algorithms
	// ignore it.
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

// Reason says why a hit was refused.
type Reason string

const (
	// Admitted is the reason of a result that is allowed.
	Admitted Reason = ""
	// LimitExceeded means that the units are used up for now.
	LimitExceeded Reason = "LimitExceeded"
	// CostExceedsLimit means that the cost can never be admitted: there is no
	// time at which to try again.
	CostExceedsLimit Reason = "CostExceedsLimit"
)

// Result is one counter's answer.
type Result struct {
	// Allowed says whether this counter has room for the hit. Units are taken
	// only when every hit of its group (shadow or not) is allowed.
	Allowed bool
	Reason  Reason
	// Remaining units after the call, 0..limit.
	Remaining int64
	// RetryAfter is the time until the same hit can be admitted at the
	// earliest if nobody else takes units; 0 when allowed, and when it can
	// never be.
	RetryAfter time.Duration
	// ResetAfter is the time until the counter is back at its full limit.
	ResetAfter time.Duration
}

// Store counts. Implementations are safe for concurrent use.
type Store interface {
	// Take decides the hits of one request in one step, all or nothing: units
	// are taken from every counter or from none. Results are in the order of
	// the hits. An error means that the outcome is not known; units may have
	// been taken, and the call must not be repeated for the same request.
	Take(ctx context.Context, hits []Hit) ([]Result, error)
	// Peek answers as Take would and takes nothing.
	Peek(ctx context.Context, hits []Hit) ([]Result, error)
}
