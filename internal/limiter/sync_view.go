package limiter

import (
	"math"
	"sync"
	"time"
)

// view is what this pod knows of one shared count: its state as the store told
// it last, with the units of this pod since. The store's clock goes on in it by
// the time that has passed here.
//
// Times are in µs since the syncs began, of a clock that never goes back.
type view struct {
	key string
	// turn has room for one: the exchange under way.
	turn chan struct{}

	mu   sync.Mutex
	rule *Rule // of the last request
	gone bool  // it is in use no more
	// count is the shared count with our units in it. It is known once the store
	// has told it.
	count   counter
	known   bool
	ahead   int64 // the store's clock ahead of ours
	heardAt int64 // when the store told it last
	usedAt  int64 // when it was last asked for

	// unsent are our units that the store has not been told of; below 0 they are
	// to be given back.
	unsent int64
	// debt are our units that the shared count had no room for. They are not in
	// count; what comes free pays for them first. A part of a unit of a
	// TokenBucket is paid already, in µs.
	debt int64
	paid int64
	// sent are those of an exchange that has not been answered, the debt among
	// them, with its token and the time at which it was first tried.
	sent   int64
	token  string
	sentAt int64
	// exchanging says that it is under way, since begunAt; failures counts how
	// often in a row it has failed.
	exchanging bool
	begunAt    int64
	failures   int

	// news counts how often the count has been, or has begun to be, replaced.
	news int
	// granted are the units that the store granted in the course of the exchange
	// under way, whose answer may know of them or not.
	granted int64
	// unsure says that units may be in the count twice for this reason, so that
	// it does not know of all the room.
	unsure bool

	timer *time.Timer
	due   int64 // when the timer rings
}

const never = math.MaxInt64

// ours are the units that the shared count may not have yet.
func (v *view) ours() int64 {
	if v.sent != 0 {
		return v.unsent + v.sent
	}
	return v.unsent + v.debt
}

// evolve is the state of the count at a time. Our units of a window that has
// ended are of no interest to the shared count any more. Those of a TokenBucket
// are: that it is full here does not say that it is full with others' units.
func (v *view) evolve(clock int64) state {
	s := v.rule.load(&v.count, clock+v.ahead)
	if _, bucket := v.rule.algorithm.(*tokenBucket); bucket || v.count.blank() {
		return s
	}
	switch {
	case s.at == v.count.state.at:
	case s.used > 0 || s.rest > 0:
		v.count.state = s
	default:
		v.count, v.unsent, v.debt = counter{}, 0, 0
		if !v.exchanging {
			v.sent = 0
		}
	}
	return s
}

func (v *view) save(r *Rule, s state, p price, n int64) {
	r.save(&v.count, s, p, n, "")
	v.count.resetAt = r.resetAt(s)
}

// add puts units into the count, or takes them out when they are below 0.
func (v *view) add(units, clock int64) {
	one := v.rule.price(1)
	if units == 0 || !one.payable() {
		return
	}
	s := v.evolve(clock)
	if units < 0 {
		v.rule.giveBack(&v.count, s, one, -units, "")
		return
	}
	units = min(units, v.rule.Capacity())
	v.save(v.rule, v.rule.take(s, one, units), one, units)
}

// adopt replaces the count by what the store says when it counted by a rule.
func (v *view) adopt(r *Rule, s state, clock int64) {
	v.known, v.heardAt, v.ahead = true, clock, s.now-clock
	v.count = counter{}
	if s.used > 0 || s.rest > 0 {
		v.save(r, s, price{}, 0)
	}
}

// decide grants as many of n requests as the count has room for, as long as our
// units stay within the bound. It says whether that is the last word, or else the
// store has to be asked for the rest.
func (v *view) decide(h *Hit, n, bound, clock int64) (granted int64, r Result, final bool) {
	j := job{verb: verbTake, count: n}
	s := v.evolve(clock)
	d := decision{rule: h.Rule, group: enforced, price: h.Rule.price(h.Cost), state: v.indebted(s)}
	fit := h.Rule.room(d.state, d.price, n)
	granted = fit
	if h.Cost > 0 {
		granted = min(fit, max(0, bound-v.ours())/h.Cost)
	}
	if granted > 0 && h.Cost > 0 {
		v.save(h.Rule, h.Rule.take(s, d.price, granted), d.price, granted)
		v.unsent += h.Cost * granted
	}
	j.granted[enforced] = granted
	return granted, j.result(&d), granted == n || granted == fit && !v.unsure
}

// indebted is a state with the debt in it, as far as there is room.
func (v *view) indebted(s state) state {
	if v.debt == 0 {
		return s
	}
	debt := v.rule.price(min(v.debt, v.rule.Capacity()))
	if !debt.payable() {
		return s
	}
	return v.rule.take(s, v.rule.within(s, debt), 1)
}

// plan has the timer ring at a time, if it would not before.
func (v *view) plan(at, clock int64) {
	if at < v.due {
		v.due = at
		v.timer.Reset(time.Duration(max(0, at-clock)) * time.Microsecond)
	}
}

// begin prepares an exchange.
func (v *view) begin(clock int64, token func() string) *Call {
	v.evolve(clock)
	if v.sent != 0 && clock-v.sentAt > exchangeLife.Microseconds() {
		// The store remembers no more whether it has them.
		v.unsent, v.sent = v.unsent+v.sent-v.debt, 0
	}
	if v.sent == 0 && v.ours() != 0 {
		v.sent, v.unsent = v.ours(), 0
		v.token, v.sentAt = token(), clock
	}
	v.exchanging, v.begunAt, v.granted = true, clock, 0
	v.news++
	c := &Call{Op: Peek, Hits: []Hit{{Rule: v.rule, Key: v.key, Cost: 1}}, wantStates: true}
	switch {
	case v.sent > 0:
		c.Op, c.Count, c.Token, c.TokenTTL = Charge, v.sent, v.token, exchangeTTL
	case v.sent < 0:
		c.Op, c.Count, c.Token, c.TokenTTL = Refund, -v.sent, v.token, exchangeTTL
	}
	return c
}

// end takes over the answer of an exchange, and says how many more of our units
// the shared count had no room for.
func (v *view) end(c *Call, err error, clock int64) (overshoot int64) {
	v.exchanging = false
	if err != nil {
		v.failures++
		return 0
	}
	var debt int64
	if c.Op == Charge && c.done {
		debt = v.pay(c.Count-c.Granted, c.excess)
	}
	overshoot = max(0, debt-v.debt)
	v.failures, v.sent, v.debt = 0, 0, debt
	v.adopt(c.Hits[0].Rule, c.states[0], clock)
	v.add(v.unsent+v.granted, clock)
	v.unsure = v.granted > 0
	return overshoot
}

// pay is what is left of a debt when another part of a unit has been paid.
func (v *view) pay(debt, part int64) int64 {
	unit := max(1, v.rule.price(1).whole)
	v.paid += part
	units := min(debt, v.paid/unit)
	v.paid -= units * unit
	return debt - units
}

// answered takes over what the store decided by itself, when the count was
// replaced so many times before it was asked.
func (v *view) answered(c *Call, news int, clock int64) {
	if !v.known && v.news == news && !v.exchanging {
		v.adopt(c.Hits[0].Rule, c.states[0], clock)
		v.begunAt = clock
		v.news++
		return
	}
	units := c.Granted * c.Hits[0].Cost
	v.add(units, clock)
	if v.exchanging {
		v.granted += units
	}
	if units > 0 && (v.exchanging || v.news != news) {
		v.unsure = true
	}
}
