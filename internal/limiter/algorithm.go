package limiter

import (
	"fmt"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// unpayable is the cost that stands for every cost above a limit's capacity. It
// is refused by all arithmetic, here and in the script, without overflowing.
const unpayable = policy.MaxInteger + 1

// state is what a counter says at the time of a call, as the script replies it.
// The fields mean, for each algorithm:
//
//	               at                  used               rest
//	FixedWindow    start of window     units              0
//	SlidingWindow  start of window     units              units of the window before
//	SlidingLog     newest entry        units              the entry that a refused hit waits for
//	TokenBucket    time of the call    µs to pay the debt numerator of a fraction of a µs
type state struct {
	now, at, used, rest int64
}

// time is the counter's own time: the clock's, which never goes back.
func (s state) time() int64 { return max(s.now, s.at) }

// algorithm is a hit's arithmetic: one way of counting, with the numbers of one
// limit and one cost. Times are in µs since 1970.
type algorithm interface {
	// arguments of the script, in its order.
	arguments(group int) []any
	// load reads a counter of the in-memory store as the script reads its own.
	load(c *counter, now int64) state
	// save writes the state after a take into the counter.
	save(c *counter, after state)
	// payable says whether there can ever be room for the hit.
	payable() bool
	// fits says whether there is room for the hit now.
	fits(s state) bool
	// take is the state after the hit was taken.
	take(s state) state
	// remaining is the units that are left.
	remaining(s state) int64
	// retryAt is when a hit that does not fit now will, if it ever can.
	retryAt(s state) int64
	// resetAt is when the counter is back at its full limit.
	resetAt(s state) int64
}

// newAlgorithm prepares the arithmetic of a hit.
func newAlgorithm(h *Hit) (algorithm, error) {
	if err := h.validate(); err != nil {
		return nil, err
	}
	window := h.Limit.Window.Microseconds()
	if h.Limit.Algorithm == policy.TokenBucket {
		return newTokenBucket(h.Limit, window, h.Cost), nil
	}
	q := quota{limit: h.Limit.Requests, window: window, cost: h.Cost}
	if q.limit == 0 || q.cost > q.limit {
		q.cost = unpayable
	}
	switch h.Limit.Algorithm {
	case policy.FixedWindow:
		return fixedWindow{q}, nil
	case policy.SlidingWindow:
		return slidingWindow{q}, nil
	case policy.SlidingLog:
		return slidingLog{q}, nil
	default:
		return nil, fmt.Errorf("%w: unknown algorithm %q", ErrInvalidHit, h.Limit.Algorithm)
	}
}

// quota is the numbers of the algorithms that count units in a window.
type quota struct {
	limit, window, cost int64
}

func (q quota) arguments(algorithm string, group int) []any {
	return []any{algorithm, group, q.window, q.cost, q.limit}
}

func (q quota) admits(used int64) bool {
	return q.cost == 0 || used <= q.limit-q.cost
}

func (q quota) left(used int64) int64 { return max(0, q.limit-used) }

func (q quota) payable() bool { return q.cost != unpayable }

// first is the smallest n of 0..high for which ok holds. Where it holds once, it
// holds for every larger number; for high it is taken to hold.
func first(high int64, ok func(n int64) bool) int64 {
	var low int64
	for low < high {
		if middle := low + (high-low)/2; ok(middle) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low
}
