package limiter

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// Limit is what one counter may hold, in numbers.
type Limit struct {
	Algorithm policy.Algorithm
	// Requests admitted per Window, 0..2^53-1; 0 refuses everything. A
	// SlidingLog stores every hit and has at most policy.MaxSlidingLogRequests.
	// For Concurrency it is the slots in use at the same time.
	Requests int64
	// Window is 1 ms..50 years and a whole number of milliseconds. A slot of
	// Concurrency that is not renewed ends after it.
	Window time.Duration
	// Burst is the capacity of a TokenBucket, 1..2^53-1; other algorithms
	// ignore it. A bucket that takes more than 142 years (2^52 µs) to fill has
	// the capacity that fills in 142 years.
	Burst int64
	// FirstRequest has a FixedWindow begin with the first request after the last
	// window ended, and not at a multiple of its length since 1970.
	FirstRequest bool
	// Calendar, when it is set, gives a FixedWindow its borders instead of
	// Window.
	Calendar Calendar
}

// Calendar divides time into windows that follow one another without a gap, such
// as the months of a time zone. It is safe for concurrent use.
type Calendar interface {
	// Around returns five borders in a row, in µs since 1970: where the window
	// before the one that holds the time begins, that window itself, and the
	// next three.
	Around(micros int64) [5]int64
	// String names the calendar in keys; it has no colon and no brace.
	String() string
}

// Rule is a Limit prepared for counting. It is immutable, and safe for
// concurrent use.
type Rule struct {
	limit Limit
	algorithm
	plan
	// part is what partOf made last.
	part atomic.Pointer[part]
}

// NewRule prepares a limit. It fails with ErrInvalid.
func NewRule(l Limit) (*Rule, error) {
	if err := l.validate(); err != nil {
		return nil, err
	}
	window := l.Window.Microseconds()
	q := quota{limit: l.Requests, window: window}
	r := &Rule{limit: l}
	switch l.Algorithm {
	case policy.FixedWindow:
		r.algorithm = newFixedWindow(l, q)
	case policy.SlidingWindow:
		r.algorithm = slidingWindow{q}
	case policy.SlidingLog:
		r.algorithm = slidingLog{q}
	case policy.TokenBucket:
		r.algorithm = newTokenBucket(l, window)
	case policy.Concurrency:
		r.algorithm = concurrency{q}
	default:
		return nil, fmt.Errorf("%w limit: unknown algorithm %q", ErrInvalid, l.Algorithm)
	}
	return r, nil
}

// Limit returns what the rule was made of.
func (r *Rule) Limit() Limit { return r.limit }

// Capacity is the most units that can be had at once.
func (r *Rule) Capacity() int64 {
	if b, bucket := r.algorithm.(*tokenBucket); bucket {
		return b.capacity
	}
	return r.limit.Requests
}

// Window is how long the window of a time is. Only those of a calendar differ.
func (r *Rule) Window(at time.Time) time.Duration { return micros(r.lasts(at.UnixMicro())) }

// lasts is how long the window of a time is, in µs.
func (r *Rule) lasts(now int64) int64 {
	if c := r.limit.Calendar; c != nil {
		borders := c.Around(now)
		return borders[2] - borders[1]
	}
	return r.limit.Window.Microseconds()
}

func (l *Limit) validate() error {
	switch {
	case l.Requests < 0 || l.Requests > policy.MaxInteger:
		return fmt.Errorf("%w limit: %d requests are not in 0..2^53-1", ErrInvalid, l.Requests)
	case l.Calendar != nil && l.Algorithm != policy.FixedWindow:
		return fmt.Errorf("%w limit: a calendar's windows are fixed, not %s", ErrInvalid, l.Algorithm)
	case l.Calendar == nil && (l.Window < time.Millisecond || l.Window > maxWindow || l.Window%time.Millisecond != 0):
		return fmt.Errorf("%w limit: window %v is not a whole number of milliseconds in 1ms..%v", ErrInvalid, l.Window, maxWindow)
	case l.Algorithm == policy.TokenBucket && (l.Burst < 1 || l.Burst > policy.MaxInteger):
		return fmt.Errorf("%w limit: burst %d is not in 1..2^53-1", ErrInvalid, l.Burst)
	case l.Algorithm == policy.SlidingLog && l.Requests > policy.MaxSlidingLogRequests:
		return fmt.Errorf("%w limit: %d requests are more than the %d that a SlidingLog can store",
			ErrInvalid, l.Requests, policy.MaxSlidingLogRequests)
	}
	return nil
}
