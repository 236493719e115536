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
	capacity int64
	burst    price
}

func (p price) exceeds(q price) bool {
	return p.whole > q.whole || p.whole == q.whole && p.part > q.part
}

func newTokenBucket(l Limit, window int64) *tokenBucket {
	requests := max(l.Requests, 1)
	divisor := gcd(window, requests)
	b := &tokenBucket{
		requests: requests,
		window:   window,
		num:      uint64(window / divisor),
		den:      uint64(requests / divisor),
	}
	if l.Requests > 0 {
		b.capacity = min(l.Burst, b.units(price{whole: maxLead}))
	}
	b.burst = b.span(b.capacity)
	return b
}

func (b *tokenBucket) code() byte { return 't' }

func (b *tokenBucket) appendTo(to []byte, _ int64) []byte {
	for _, n := range []int64{b.burst.whole, b.burst.part, int64(b.den), b.requests} {
		to = appendInteger(to, n)
	}
	return to
}

func (b *tokenBucket) price(cost int64) price {
	if b.capacity == 0 || cost > b.capacity {
		return price{whole: unpayable}
	}
	return b.span(cost)
}

// together keeps the sum of so many numerators below 2^53.
func (b *tokenBucket) together() int64 { return max(1, policy.MaxInteger/int64(b.den)) }

// span is the time of so many units, at most those of maxLead.
func (b *tokenBucket) span(units int64) price {
	hi, lo := bits.Mul64(uint64(units), b.num)
	whole, part := bits.Div64(hi, lo, b.den)
	return price{int64(whole), int64(part)}
}

// units is the whole units that a span pays for, at most 2^53-1.
func (b *tokenBucket) units(p price) int64 {
	hi, lo := bits.Mul64(uint64(p.whole), b.den)
	lo, carry := bits.Add64(lo, uint64(p.part), 0)
	hi += carry
	if hi >= b.num {
		return policy.MaxInteger
	}
	units, _ := bits.Div64(hi, lo, b.num)
	return int64(min(units, policy.MaxInteger))
}

// times is n spans. Their sum is at most 2^53 µs.
func (b *tokenBucket) times(p price, n int64) price {
	hi, lo := bits.Mul64(uint64(p.part), uint64(n))
	whole, part := bits.Div64(hi, lo, b.den)
	return price{p.whole*n + int64(whole), int64(part)}
}

// plus is p + q without overflowing where numerators near 2^53 are added.
func (b *tokenBucket) plus(p, q price) price {
	if den := int64(b.den); p.part >= den-q.part {
		return price{p.whole + q.whole + 1, p.part - (den - q.part)}
	}
	return price{p.whole + q.whole, p.part + q.part}
}

// minus is p - q; its whole part is negative when q is larger.
func (b *tokenBucket) minus(p, q price) price {
	if p.part < q.part {
		return price{p.whole - q.whole - 1, p.part + (int64(b.den) - q.part)}
	}
	return price{p.whole - q.whole, p.part - q.part}
}

func (b *tokenBucket) load(c *counter, now int64) state {
	s := c.state
	lead := b.revalue(estimate{leadOf(s), c.requests})
	if lead.whole -= max(0, now-s.at); lead.whole < 0 {
		lead = price{}
	}
	return state{now: now, at: max(now, s.at), used: lead.whole, rest: lead.part}
}

func (b *tokenBucket) rate() int64 { return b.requests }

func (b *tokenBucket) revalue(e estimate) price {
	p := e.price
	if e.rate != b.requests {
		p = b.rescale(p, e.rate)
	}
	if p.exceeds(b.burst) {
		return b.burst
	}
	return p
}

// rescale keeps the units that a lead stands for when the rate has changed: the
// new numbers are taken to hold since the last take. It rounds down, which is
// worth a microsecond, by the operations of the script.
func (b *tokenBucket) rescale(lead price, rate int64) price {
	whole := math.Floor(float64(lead.whole) * float64(rate) / float64(b.requests))
	return price{whole: int64(min(whole, unpayable))}
}

func (b *tokenBucket) save(c *counter, after state, _ price, _ int64, _ string) {
	c.state, c.requests = after, b.requests
}

func (b *tokenBucket) giveBack(c *counter, s state, p price, n int64, token string) (state, int64) {
	back := min(n, b.fits(price{}, leadOf(s), p, n))
	rest := price{}
	if back == n {
		rest = b.minus(leadOf(s), b.times(p, n))
	}
	s.used, s.rest = rest.whole, rest.part
	b.save(c, s, p, n, token)
	return s, back
}

func (b *tokenBucket) await(_ *counter, before, _ state, _ price) int64 { return before.rest }

func (b *tokenBucket) room(s state, p price, n int64) int64 {
	return b.fits(leadOf(s), b.burst, p, n)
}

// fits is how many of n prices fit between two spans.
func (b *tokenBucket) fits(from, to, p price, n int64) int64 {
	if from.exceeds(to) || !p.payable() {
		return 0
	}
	if p.zero() {
		return n
	}
	gap := b.minus(to, from)
	// The quotient of doubles is off by one at most.
	share := func(p price) float64 { return float64(p.whole) + float64(p.part)/float64(b.den) }
	m := int64(min(share(gap)/share(p), float64(n)))
	switch {
	case m > 0 && b.times(p, m).exceeds(gap):
		return m - 1
	case m < n && !b.times(p, m+1).exceeds(gap):
		return m + 1
	default:
		return m
	}
}

func (b *tokenBucket) take(s state, p price, n int64) state {
	after := b.plus(leadOf(s), b.times(p, n))
	s.used, s.rest = after.whole, after.part
	return s
}

func (b *tokenBucket) within(s state, p price) price {
	if gap := b.minus(b.burst, leadOf(s)); p.exceeds(gap) {
		return gap
	}
	return p
}

func (b *tokenBucket) remaining(s state) int64 {
	return b.units(b.minus(b.burst, leadOf(s)))
}

func (b *tokenBucket) retryAt(s state, p price) int64 {
	return s.at + ceil(b.minus(b.plus(leadOf(s), p), b.burst))
}

func (b *tokenBucket) resetAt(s state) int64 { return s.at + ceil(leadOf(s)) }

func leadOf(s state) price { return price{s.used, s.rest} }

// ceil is the span in whole microseconds, rounded up: the script's clock has no
// finer ones.
func ceil(p price) int64 {
	if p.part > 0 {
		return p.whole + 1
	}
	return p.whole
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
