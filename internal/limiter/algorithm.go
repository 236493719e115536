package limiter

import (
	"encoding/binary"
	"math/bits"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// state is what a counter says at one time, as the script replies it. The fields
// mean, for each algorithm:
//
//	               at                  used               rest
//	FixedWindow    start of window     units              0
//	SlidingWindow  start of window     units              units of the window before
//	SlidingLog     newest entry        units              the entry that a refused hit waits for
//	TokenBucket    time of the call    µs to pay the debt numerator of a fraction of a µs
//	Concurrency    time of the call    slots              0
type state struct {
	now, at, used, rest int64
}

// time is the counter's own time: the clock's, which never goes back.
func (s state) time() int64 { return max(s.now, s.at) }

// price is a cost in the terms of a state: units or, of a TokenBucket, whole
// microseconds and the numerator of a fraction.
type price struct{ whole, part int64 }

// unpayable is the price that stands for every cost above a limit's capacity. It
// is refused by all arithmetic, here and in the script, without overflowing.
const unpayable = policy.MaxInteger + 1

func (p price) payable() bool { return p.whole != unpayable }

func (p price) zero() bool { return p == price{} }

// algorithm is the arithmetic of one way of counting, with the numbers of one
// limit. Times are in µs since 1970.
type algorithm interface {
	// code is the algorithm's letter in keys and in the script's arguments.
	code() byte
	// appendTo adds what the script knows of a rule beyond code and window.
	// clock is about Redis's time.
	appendTo(b []byte, clock int64) []byte
	// price is what a cost comes to.
	price(cost int64) price
	// together is how many like requests the script can count in one step.
	together() int64

	// load reads a counter of the in-memory store as the script reads its own.
	load(c *counter, now int64) state
	// save writes the state after a take of n times the price.
	save(c *counter, after state, p price, n int64, token string)
	// giveBack returns n times the price, at most what is there, writes the
	// counter, and says what is then and how many of n were there.
	giveBack(c *counter, s state, p price, n int64, token string) (state, int64)
	// await is what a decision has for rest, with which retryAt is asked: that of
	// the state before, except where the counter has to be looked at.
	await(c *counter, before, after state, p price) int64

	// room is how many of n like requests fit now.
	room(s state, p price, n int64) int64
	// take is the state after n requests were taken.
	take(s state, p price, n int64) state
	// minus is a difference; its whole part is negative where less is more.
	minus(p, less price) price
	// rate is what a price depends on besides the cost, and revalue the price of an
	// estimate with the present numbers: of what can be counted now at most.
	rate() int64
	revalue(e estimate) price
	// within is the part of a price for which there is room.
	within(s state, p price) price
	// remaining is the units that are left.
	remaining(s state) int64
	// retryAt is when a hit that does not fit now will, if it ever can.
	retryAt(s state, p price) int64
	// resetAt is when the counter is back at its full limit.
	resetAt(s state) int64
}

// quota is the numbers of the algorithms that count units in a window.
type quota struct {
	limit, window int64
}

func (q quota) appendTo(b []byte, _ int64) []byte { return appendInteger(b, q.limit) }

func (q quota) price(cost int64) price {
	if q.limit == 0 || cost > q.limit {
		return price{whole: unpayable}
	}
	return price{whole: cost}
}

func (q quota) together() int64 { return policy.MaxInteger }

// fit is how many of n prices fit beside the units used.
func (q quota) fit(used int64, p price, n int64) int64 {
	if p.zero() {
		return n
	}
	return min(n, max(0, q.limit-used)/p.whole)
}

func (q quota) left(used int64) int64 { return max(0, q.limit-used) }

func (q quota) take(s state, p price, n int64) state {
	s.used += p.whole * n
	return s
}

func (q quota) save(c *counter, after state, _ price, _ int64, _ string) { c.state = after }

func (q quota) giveBack(c *counter, s state, p price, n int64, _ string) (state, int64) {
	back := min(product(p.whole, n), s.used)
	if back > 0 {
		s.used -= back
		c.state = s
	}
	return s, back / p.whole
}

func (q quota) await(_ *counter, before, _ state, _ price) int64 { return before.rest }

func (q quota) minus(p, less price) price { return price{whole: p.whole - less.whole} }

func (q quota) rate() int64 { return 0 }

func (q quota) revalue(e estimate) price { return price{whole: min(e.whole, q.limit)} }

// product is a*b, or 2^63-1 where that is more.
func product(a, b int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi > 0 || lo > 1<<63-1 {
		return 1<<63 - 1
	}
	return int64(lo)
}

// appendInteger adds the seven bytes in which the script reads a number.
func appendInteger(b []byte, n int64) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(n))
	return b[:len(b)-1]
}

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
