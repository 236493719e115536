package limiter

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// moment is a time of the leases' clock: since they began.
type moment = time.Duration

// lease is what a pod knows of one counter: the units that it has taken from the
// shared count and not spent, until when the shared count has no more, and who
// waits for its answer.
//
// hand and drought are read without the lock and replaced under it, and mean
// nothing to other rules than theirs.
type lease struct {
	// The table's: key and hash, the next lease in the chain, and the place among
	// the members.
	key    string
	hash   uint64
	next   atomic.Pointer[lease]
	member int

	hand    atomic.Pointer[hand]
	drought atomic.Pointer[drought]
	// asking says that the shared count is being asked; who sets it, asks.
	asking atomic.Bool

	mu      sync.Mutex
	rule    *Rule // the newest
	waiting []*waiter
	pace    pace
	thirst  thirst
	// shared is what the shared count had left when it was asked last, or
	// unknownShare.
	shared int64
	// reset is when the shared count was last reset from here, as far as the lease
	// can know: it may have been until it began. What the count was asked before that
	// says nothing of it any more.
	reset moment
	// used is when a request last needed the lock.
	used moment
	// dropped says that the lease is out of use: another one has the key.
	dropped bool
}

// hand is units at hand. Only left ever changes, and counted under the lock.
type hand struct {
	left atomic.Int64
	rule *Rule
	// until is when the units may not be spent any more, border when the window
	// ends in which they were counted: then there is nothing to give back.
	until, border moment
	// low has more units taken ahead of need when fewer are left.
	low int64
	// counted is what was left when the pace was last measured.
	counted int64
	standing
}

// drought is the time in which the shared count has nothing for requests of a
// cost or above that is worth asking for.
type drought struct {
	rule *Rule
	cost int64
	// until is when it is asked again; retryAt when it has the cost's units if
	// none are given back before.
	until, retryAt moment
	standing
}

// standing is what the shared count said last.
type standing struct {
	shared  int64 // units left in it
	resetAt moment
}

// unknownShare is that of a count that was not asked yet.
const unknownShare = policy.MaxInteger

// Those of no rule.
var (
	noHand    = &hand{}
	noDrought = &drought{}
)

func newLease(key string, now moment) *lease {
	e := &lease{key: key, pace: pace{since: now - ahead}, shared: unknownShare, reset: now, used: now}
	e.hand.Store(noHand)
	e.drought.Store(noDrought)
	return e
}

// spend takes units at hand, all or none, and says how many are left.
func (h *hand) spend(units int64) (left int64, ok bool) {
	for {
		left = h.left.Load()
		if left < units {
			return left, false
		}
		if h.left.CompareAndSwap(left, left-units) {
			return left - units, true
		}
	}
}

func (h *hand) valid(r *Rule, now moment) bool { return h.rule == r && now < h.until }

func (s *standing) granted(atHand int64, now moment) Result {
	return Result{Allowed: true, Remaining: s.shared + atHand, ResetAfter: max(0, s.resetAt-now)}
}

// refuse is the answer to a hit when so many units are at hand.
func (d *drought) refuse(cost, atHand int64, now moment) Result {
	r := d.granted(atHand, now)
	r.Allowed, r.Reason = false, LimitExceeded
	r.RetryAfter = max(d.retryAt, d.until) - now
	if cost == d.cost {
		return r
	}
	// A larger one waits for longer.
	switch a := d.rule.algorithm.(type) {
	case fixedWindow:
	case *tokenBucket:
		r.RetryAfter += micros(ceil(a.span(cost - d.cost)))
	default:
		r.RetryAfter = max(r.RetryAfter, r.ResetAfter)
	}
	return r
}

func (d *drought) holds(r *Rule, cost int64, now moment) bool {
	return d.rule == r && cost >= d.cost && now < d.until
}

// verdict is what is decided without asking.
type verdict byte

const (
	verdictOpen verdict = iota
	verdictRefused
	verdictGranted
	// verdictLow grants, and has the caller see to it that more is asked for.
	verdictLow
)

// decide decides by what is at hand, if it suffices for all units, or by what is
// known of the shared count, if nothing can be granted.
func (e *lease) decide(h *Hit, units int64, now moment) (Result, verdict) {
	at, left := e.hand.Load(), int64(0)
	if at.valid(h.Rule, now) {
		var ok bool
		if left, ok = at.spend(units); ok {
			r := at.granted(left, now)
			if left < at.low && e.asking.CompareAndSwap(false, true) {
				return r, verdictLow
			}
			return r, verdictGranted
		}
	}
	dry := e.drought.Load()
	if dry.holds(h.Rule, h.Cost, now) && left < h.Cost && h.Cost <= h.Rule.Capacity() {
		return dry.refuse(h.Cost, left, now), verdictRefused
	}
	return Result{}, verdictOpen
}

// waiter is like requests that wait for the shared count.
type waiter struct {
	cost, n int64
	// done is closed when the fields below are written. Until then they are
	// under the lease's lock.
	done    chan struct{}
	granted int64
	result  Result
	err     error
	served  bool
	gone    bool // it waits no longer
}

func (w *waiter) serve(granted int64, r Result, err error) {
	w.granted, w.result, w.err, w.served = granted, r, err, true
	close(w.done)
}

// leave says that a waiter waits no longer, unless it has been served.
func (e *lease) leave(w *waiter) (served bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w.gone = !w.served
	return w.served
}

// question is what the shared count is asked by a lease at one time.
type question struct {
	rule  *Rule
	batch []*waiter // whose need it is
	units int64
	size  int64 // units that are to be at hand afterwards
	sent  moment
}

// ask makes the next question: for what those need who wait, and for what is
// missing to a hand that lasts for a while, of which at most so many units may
// be idle. The less the shared count has left for so many live pods, the less is
// asked for ahead of need. Where nothing is needed, asking ends. The lease is
// locked.
func (e *lease) ask(live, idle int64, now moment) (question, bool) {
	q := question{rule: e.rule, sent: now}
	most := q.rule.together()
	n := 0
	for _, w := range e.waiting {
		if units := w.cost * w.n; !w.gone {
			if units > most-q.units {
				break // has its turn with the next
			}
			q.batch = append(q.batch, w)
			q.units += units
		}
		n++
	}
	e.waiting = e.waiting[n:]
	left, spent, life := e.count(now)
	e.pace.add(spent+q.units, now)
	q.size = min(idle, e.pace.want(life, idle), max(e.pace.scarce(), e.shared/(2*live)))
	q.units = min(q.units+max(0, q.size-left), most)
	if q.units == 0 {
		e.asking.Store(false)
	}
	return q, q.units > 0
}

// count says how many units are at hand, how many have been spent since it was
// asked last, and how long more would last.
func (e *lease) count(now moment) (left, spent int64, life time.Duration) {
	h := e.hand.Load()
	life = min(e.rule.life(), ahead)
	if h == noHand {
		return 0, 0, life
	}
	left = h.left.Load()
	// Units that came back make less than nothing.
	spent = max(0, h.counted-left)
	h.counted = left
	if !h.valid(e.rule, now) {
		return 0, spent, life
	}
	return left, spent, min(life, h.border-now)
}

// deal hands out what a question was granted, in the order in which the waiters
// came, and keeps the rest at hand. It returns how many units are to be given
// back. The lease is locked.
func (e *lease) deal(q question, c *Call, live, idle int64, now moment) (surplus int64) {
	answer := c.Results[0]
	e.shared = answer.Remaining
	told := standing{shared: answer.Remaining, resetAt: now + answer.ResetAfter}
	h := &hand{rule: q.rule, low: (q.size + 2) / 3, standing: told}
	h.until, h.border = lasting(q, c)
	dry := noDrought
	if c.Granted < q.units {
		h.low = 0
		pause := e.thirst.pause(q.rule, live, c.Granted, answer.RetryAfter)
		dry = &drought{rule: q.rule, cost: 1, until: now + pause, retryAt: now + answer.RetryAfter, standing: told}
	} else {
		e.thirst = thirst{}
	}

	pool, surplus := e.takeUp(h, c.Granted, now)
	pool = serve(q.batch, pool, h, dry, now)
	if q.sent < e.reset {
		dry = noDrought
	}
	if now < h.until || dry != noDrought {
		pool = e.serveLater(pool, h, dry, now)
	}
	if pool > idle { // some have left who asked for units
		surplus += h.worth(pool-idle, now)
		pool = idle
	}
	h.left.Store(pool)
	h.counted = pool
	e.hand.Store(h)
	e.drought.Store(dry)
	return surplus
}

// takeUp adds what is at hand to what was granted. Units whose time is over are
// to be given back instead.
func (e *lease) takeUp(h *hand, granted int64, now moment) (pool, surplus int64) {
	last := e.hand.Load()
	rest := last.left.Swap(0)
	if !last.valid(h.rule, now) {
		return granted, last.worth(rest, now)
	}
	// Both were counted in the same window: had another one begun, the last
	// hand would not be valid any more.
	if granted == 0 {
		h.until, h.border = last.until, last.border
	}
	return granted + rest, 0
}

// worth is how many of so many units can be given back.
func (h *hand) worth(units int64, now moment) int64 {
	if now >= h.border {
		return 0
	}
	return units
}

// serve gives to each waiter in turn what the pool has for it.
func serve(waiters []*waiter, pool int64, h *hand, dry *drought, now moment) (rest int64) {
	for _, w := range waiters {
		if w.gone {
			continue
		}
		n := min(w.n, pool/w.cost)
		pool -= n * w.cost
		if n == w.n {
			w.serve(n, h.granted(pool, now), nil)
		} else {
			w.serve(n, dry.refuse(w.cost, pool, now), nil)
		}
	}
	return pool
}

// serveLater serves those who came when the question had been sent already: all
// in a drought, else as many as the pool has enough for.
func (e *lease) serveLater(pool int64, h *hand, dry *drought, now moment) (rest int64) {
	n, need := 0, int64(0)
	for n < len(e.waiting) {
		if w := e.waiting[n]; !w.gone {
			need += w.cost * w.n
		}
		if need > pool && dry == noDrought {
			break
		}
		n++
	}
	pool = serve(e.waiting[:n], pool, h, dry, now)
	e.waiting = e.waiting[n:]
	return pool
}

// fail tells an error to those who wait. What is at hand stays, and nothing is
// asked ahead of need until it has been spent. The lease is locked.
func (e *lease) fail(q question, err error) {
	for _, w := range q.batch {
		if !w.gone {
			w.serve(0, Result{}, err)
		}
	}
	last := e.hand.Load()
	if last == noHand {
		return
	}
	h := &hand{rule: last.rule, until: last.until, border: last.border, standing: last.standing}
	rest := last.left.Swap(0)
	h.left.Store(rest)
	h.counted = rest
	e.hand.Store(h)
}

// remember notes that the shared count refused a hit that it was asked for, until
// it may have room for it again: if none is given back, that is no earlier than
// counted from when the question was sent.
func (e *lease) remember(h *Hit, r Result, sent, now moment) {
	if e.rule != h.Rule || sent < e.reset || e.drought.Load().holds(h.Rule, h.Cost, now) {
		return
	}
	e.drought.Store(&drought{
		rule: h.Rule, cost: h.Cost,
		until: sent + min(r.RetryAfter, ahead), retryAt: now + r.RetryAfter,
		standing: standing{shared: r.Remaining, resetAt: now + r.ResetAfter},
	})
}

// withdraw takes what is at hand, at most so much, and says from which hand.
func (e *lease) withdraw(r *Rule, most int64, now moment) (units int64, from *hand) {
	h := e.hand.Load()
	for h.valid(r, now) {
		units = min(most, h.left.Load())
		if _, ok := h.spend(units); ok {
			return units, h
		}
	}
	return 0, h
}

// deposit puts units back to a hand, up to so many, and says how many have no
// place there.
func (e *lease) deposit(units int64, h *hand, idle int64, now moment) (rest int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.hand.Load() != h || !h.valid(h.rule, now) {
		return h.worth(units, now)
	}
	n := min(units, max(0, idle-h.left.Load()))
	h.left.Add(n)
	return units - n
}

// empty takes away all that is at hand, and says how much of it can be given
// back. The lease is locked.
func (e *lease) empty(now moment) (units int64) {
	h := e.hand.Load()
	e.hand.Store(noHand)
	return h.worth(h.left.Swap(0), now)
}

// keep has units that are being spent stay at hand for another life, within the
// window in which they were counted. The lease is locked.
func (e *lease) keep(h *hand, now moment) {
	kept := &hand{rule: h.rule, until: min(h.border, now+h.rule.life()), border: h.border, low: h.low, standing: h.standing}
	left := h.left.Swap(0)
	e.pace.add(max(0, h.counted-left), now)
	kept.left.Store(left)
	kept.counted = left
	e.hand.Store(kept)
}

// tidy takes away units whose time is over, and says how many of them can be
// given back, and whether the lease is of no use any more.
func (e *lease) tidy(now moment) (r *Rule, units int64, useless bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.hand.Load()
	switch {
	case h == noHand:
	case now >= h.until:
		r, units = h.rule, e.empty(now)
	case now+tidyEvery >= h.until && h.left.Load() < h.counted:
		e.keep(h, now)
	}
	// Under the lock nobody begins to ask without a hand.
	e.dropped = e.hand.Load() == noHand && !e.asking.Load() && now-e.used >= lifetime
	return r, units, e.dropped
}
