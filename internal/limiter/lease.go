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
// hand and drought are read, and units spent, without the lock, and changed under it;
// they mean nothing to other rules than theirs. The table's fields are under its lock, all
// else but asking under the lease's. What a decision reads comes first, so that it is in
// as few lines of the cache as can be.
type lease struct {
	// The table's: key and hash, and the next lease in the chain.
	key  string
	hash uint64
	next atomic.Pointer[lease]

	drought atomic.Pointer[drought]
	hand    hand
	// asking says that the shared count is being asked; who sets it, asks.
	asking atomic.Bool

	member int // the place among the table's members

	mu      sync.Mutex
	rule    *Rule // the newest
	waiting []*waiter
	pace    pace
	thirst  thirst
	// shared is what the shared count had left when it was asked last, or
	// unknownShare.
	shared int64
	// used is when a request last needed the lock.
	used moment
	// dropped says that the lease is out of use: another one has the key.
	dropped bool

	// To four lines of the cache, of 64 bytes, so that none is shared with another lease.
	_ [32]byte
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

// noDrought is of no rule.
var noDrought = &drought{}

func newLease(key string, now moment) *lease {
	e := &lease{key: key, pace: pace{since: now - ahead}, shared: unknownShare, used: now}
	e.drought.Store(noDrought)
	return e
}

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
	left, told, ok := e.hand.spend(h.Rule, units, now)
	if ok {
		r := told.granted(left, now)
		if left < e.hand.low.Load() && e.asking.CompareAndSwap(false, true) {
			return r, verdictLow
		}
		return r, verdictGranted
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
	// stale says that a count has been reset since: the answer may say nothing of what
	// the shared count has now.
	stale bool
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
	h := &e.hand
	life = min(e.rule.life(), ahead)
	left = h.left()
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
	t := terms{rule: q.rule, low: (q.size + 2) / 3, standing: told}
	t.until, t.border = lasting(q, c)
	dry := noDrought
	if c.Granted < q.units {
		t.low = 0
		pause := e.thirst.pause(q.rule, live, c.Granted, answer.RetryAfter)
		dry = &drought{rule: q.rule, cost: 1, until: now + pause, retryAt: now + answer.RetryAfter, standing: told}
	} else {
		e.thirst = thirst{}
	}

	pool, surplus := e.takeUp(&t, c.Granted, now)
	pool = serve(q.batch, pool, &told, dry, now)
	if q.stale { // as if just forgotten
		dry, e.thirst, e.shared = noDrought, thirst{}, unknownShare
	}
	if now < t.until || dry != noDrought {
		pool = e.serveLater(pool, &told, dry, now)
	}
	if pool > idle { // some have left who asked for units
		surplus += worth(pool-idle, t.border, now)
		pool = idle
	}
	e.hand.open(t, pool)
	e.drought.Store(dry)
	return surplus
}

// takeUp adds what is at hand, which it takes, to what was granted. Units whose time is
// over are to be given back instead.
func (e *lease) takeUp(t *terms, granted int64, now moment) (pool, surplus int64) {
	last := &e.hand
	rest := last.close()
	if !last.valid(t.rule, now) {
		return granted, last.worth(rest, now)
	}
	// Both were counted in the same window: had another one begun, the last
	// hand would not be valid any more.
	if granted == 0 {
		t.until, t.border = last.until.Load(), last.border
	}
	return granted + rest, 0
}

// serve gives to each waiter in turn what the pool has for it.
func serve(waiters []*waiter, pool int64, told *standing, dry *drought, now moment) (rest int64) {
	for _, w := range waiters {
		if w.gone {
			continue
		}
		n := min(w.n, pool/w.cost)
		pool -= n * w.cost
		if n == w.n {
			w.serve(n, told.granted(pool, now), nil)
		} else {
			w.serve(n, dry.refuse(w.cost, pool, now), nil)
		}
	}
	return pool
}

// serveLater serves those who came when the question had been sent already: all
// in a drought, else as many as the pool has enough for.
func (e *lease) serveLater(pool int64, told *standing, dry *drought, now moment) (rest int64) {
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
	pool = serve(e.waiting[:n], pool, told, dry, now)
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
	e.hand.low.Store(0)
	e.hand.counted = e.hand.left()
}

// remember notes that the shared count refused a hit that it was asked for, until
// it may have room for it again: if none is given back, that is no earlier than
// counted from when the question was sent.
func (e *lease) remember(h *Hit, r Result, sent, now moment) {
	if e.rule != h.Rule || e.drought.Load().holds(h.Rule, h.Cost, now) {
		return
	}
	e.drought.Store(&drought{
		rule: h.Rule, cost: h.Cost,
		until: sent + min(r.RetryAfter, ahead), retryAt: now + r.RetryAfter,
		standing: standing{shared: r.Remaining, resetAt: now + r.ResetAfter},
	})
}

// empty takes away all that is at hand, and says how much of it can be given
// back. The lease is locked.
func (e *lease) empty(now moment) (units int64) {
	units = e.hand.worth(e.hand.close(), now)
	e.hand.open(terms{}, 0)
	return units
}

// keep has units that are being spent stay at hand for another life, within the
// window in which they were counted. The lease is locked.
func (e *lease) keep(now moment) {
	h, left := &e.hand, e.hand.left()
	h.until.Store(min(h.border, now+h.rule.Load().life()))
	e.pace.add(max(0, h.counted-left), now)
	h.counted = left
}

// tidy takes away units whose time is over, and says how many of them can be
// given back, and whether the lease is of no use any more.
func (e *lease) tidy(now moment) (r *Rule, units int64, useless bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := &e.hand
	r = h.rule.Load()
	switch {
	case r == nil:
	case now >= h.until.Load():
		units = e.empty(now)
	case now+tidyEvery >= h.until.Load() && h.left() < h.counted:
		e.keep(now)
	}
	// Under the lock nobody begins to ask without a hand.
	e.dropped = h.rule.Load() == nil && !e.asking.Load() && now-e.used >= lifetime
	return r, units, e.dropped
}
