package limiter

import (
	"math"
	"math/bits"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// maxLead bounds the time to fill a bucket: 2^52 µs, 142 years. Times beyond it
// would not be exact in Lua.
const maxLead = 1 << 52

// tokenBucket is the generic cell rate algorithm (ITU-T I.371): the bucket is
// not a number of tokens but the time that filling it up would take, the lead.
// A hit adds its cost's time to the lead and is admitted while the lead stays
// within that of a whole bucket. Nothing has to be multiplied by the time that
// has passed, so all numbers stay small, and exact: whole microseconds, and a
// fraction whose denominator depends on the limit only.
type tokenBucket struct {
	// requests per window is the rate, at least 1.
	requests int64
	window   int64
	// num/den µs is the time of one unit: window/requests in lowest terms.
	num, den uint64
	cost     span
	burst    span
}

// span is micros + frac/den µs, with frac below the bucket's den.
type span struct{ micros, frac int64 }

func (a span) exceeds(b span) bool {
	return a.micros > b.micros || a.micros == b.micros && a.frac > b.frac
}

func newTokenBucket(l Limit, window, cost int64) tokenBucket {
	requests := max(l.Requests, 1)
	divisor := gcd(window, requests)
	b := tokenBucket{
		requests: requests,
		window:   window,
		num:      uint64(window / divisor),
		den:      uint64(requests / divisor),
	}
	capacity := min(l.Burst, b.units(span{micros: maxLead}))
	if l.Requests == 0 {
		capacity = 0
	}
	b.burst = b.span(capacity)
	b.cost = span{micros: unpayable}
	if 0 < capacity && cost <= capacity {
		b.cost = b.span(cost)
	}
	return b
}

// span is the time of so many units, at most those of maxLead.
func (b tokenBucket) span(units int64) span {
	hi, lo := bits.Mul64(uint64(units), b.num)
	micros, frac := bits.Div64(hi, lo, b.den)
	return span{int64(micros), int64(frac)}
}

// units is the whole units that a span pays for, at most 2^53-1.
func (b tokenBucket) units(s span) int64 {
	hi, lo := bits.Mul64(uint64(s.micros), b.den)
	lo, carry := bits.Add64(lo, uint64(s.frac), 0)
	hi += carry
	if hi >= b.num {
		return policy.MaxInteger
	}
	units, _ := bits.Div64(hi, lo, b.num)
	return int64(min(units, policy.MaxInteger))
}

// plus is a + c without overflowing where fractions near 2^53 are added.
func (b tokenBucket) plus(a, c span) span {
	if den := int64(b.den); a.frac >= den-c.frac {
		return span{a.micros + c.micros + 1, a.frac - (den - c.frac)}
	}
	return span{a.micros + c.micros, a.frac + c.frac}
}

// minus is a - c; its micros are negative when c is larger.
func (b tokenBucket) minus(a, c span) span {
	if a.frac < c.frac {
		return span{a.micros - c.micros - 1, a.frac + (int64(b.den) - c.frac)}
	}
	return span{a.micros - c.micros, a.frac - c.frac}
}

func (b tokenBucket) arguments(group int) []any {
	return []any{
		"t", group, b.window, b.cost.micros, b.cost.frac,
		b.burst.micros, b.burst.frac, b.den, b.requests,
	}
}

func (b tokenBucket) load(c *counter, now int64) state {
	s := c.state
	lead := leadOf(s)
	if c.requests != b.requests {
		lead = b.rescale(lead, c.requests)
	}
	if lead.exceeds(b.burst) {
		lead = b.burst
	}
	if lead.micros -= max(0, now-s.at); lead.micros < 0 {
		lead = span{}
	}
	return state{now: now, at: max(now, s.at), used: lead.micros, rest: lead.frac}
}

// rescale keeps the units that a lead stands for when the rate has changed: the
// new numbers are taken to hold since the last take. It rounds down, which is
// worth a microsecond, by the operations of the script.
func (b tokenBucket) rescale(lead span, rate int64) span {
	micros := math.Floor(float64(lead.micros) * float64(rate) / float64(b.requests))
	return span{micros: int64(min(micros, unpayable))}
}

func (b tokenBucket) save(c *counter, after state) {
	c.state, c.requests = after, b.requests
}

func (b tokenBucket) payable() bool { return b.cost.micros != unpayable }

func (b tokenBucket) fits(s state) bool {
	return !b.plus(leadOf(s), b.cost).exceeds(b.burst)
}

func (b tokenBucket) take(s state) state {
	after := b.plus(leadOf(s), b.cost)
	s.used, s.rest = after.micros, after.frac
	return s
}

func (b tokenBucket) remaining(s state) int64 {
	return b.units(b.minus(b.burst, leadOf(s)))
}

func (b tokenBucket) retryAt(s state) int64 {
	return s.at + ceil(b.minus(b.plus(leadOf(s), b.cost), b.burst))
}

func (b tokenBucket) resetAt(s state) int64 { return s.at + ceil(leadOf(s)) }

func leadOf(s state) span { return span{s.used, s.rest} }

// ceil is the span in whole microseconds, rounded up: the script's clock has no
// finer ones.
func ceil(s span) int64 {
	if s.frac > 0 {
		return s.micros + 1
	}
	return s.micros
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
