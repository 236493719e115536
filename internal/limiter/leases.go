package limiter

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// leases decide by units that they take from the shared count in batches, before
// they are needed, and spend in memory. A unit is counted before it is spent, so
// that whatever crashes, no more is admitted than the limit; the price is that
// units are refused to others while they lie idle here, at most the percentage
// that the rule declares in all pods together.
//
// FixedWindow and SlidingWindow admit in no window more than Exact would: units
// are spent in the window that counted them, or not at all. With TokenBucket and
// SlidingLog a unit is spent some time after it was counted; so any stretch of time
// may see what was idle when it began on top of what Exact admits.
//
// How many units are at hand follows the pace at which a key's are spent. Where
// nothing has been spent for five seconds, or a quarter of the window, what is
// left is given back. While the shared count has less than is wanted, it is asked
// only when enough has gathered, and requests are refused by what it said last.
//
// Spending takes no lock and allocates nothing. leases are safe for concurrent
// use.
type leases struct {
	store   Store
	pods    Pods
	elapsed func() moment
	byKey   *leaseTable // the leases in use
	inUse   atomic.Int64
	// lastReset is when a count was last reset from here, whosever.
	lastReset atomicMoment

	// closed leases ask the shared count for every request.
	closed atomic.Bool

	mu      sync.Mutex
	tidying bool
	done    chan struct{}  // closed with the leases
	work    sync.WaitGroup // goroutines, begun under the lock while not closed
}

// maxLeases bounds the keys with leases. The shared count decides the requests of
// the others, so that a flood of keys costs calls of the store, and not memory.
const maxLeases = 1 << 16

// newLeases returns leases on a store's counts. A nil now is this process's
// monotonic clock, which is the fastest to read.
func newLeases(store Store, pods Pods, now func() time.Time) *leases {
	l := &leases{byKey: newLeaseTable(), store: store, pods: pods, done: make(chan struct{})}
	if now == nil {
		began := time.Now()
		l.elapsed = func() moment { return time.Since(began) }
	} else {
		began := now()
		l.elapsed = func() moment { return now().Sub(began) }
	}
	return l
}

// take implements local.
func (l *leases) take(ctx context.Context, h *Hit, n int64, timeout time.Duration) (int64, Result, error) {
	e := l.byKey.load(h.Key)
	switch {
	case e == nil && l.inUse.Load() >= maxLeases:
		return l.ask(ctx, h, h.Cost, n, timeout)
	case e == nil || h.Cost == 0:
		return l.takeSlowly(ctx, h, n, timeout)
	}
	r, v := e.decide(h, product(h.Cost, n), l.elapsed())
	switch v {
	case verdictOpen:
		return l.takeSlowly(ctx, h, n, timeout)
	case verdictRefused:
		return 0, r, nil
	case verdictLow:
		l.start(func() { l.refill(e) })
	}
	return n, r, nil
}

// takeSlowly decides what needs more than a look at what is at hand.
func (l *leases) takeSlowly(ctx context.Context, h *Hit, n int64, timeout time.Duration) (int64, Result, error) {
	units := product(h.Cost, n)
	switch large := units > l.idle(h.Rule); {
	case h.Cost == 0 || large && n == 1:
		return l.takeExactly(ctx, h, n, timeout)
	case large:
		return l.takeMany(ctx, h, n, timeout)
	}
	now := l.elapsed()
	e := l.locked(h, now)
	// It may have come meanwhile.
	r, v := e.decide(h, units, now)
	var w *waiter
	if v == verdictOpen {
		if len(e.waiting) >= maxWaiting {
			e.mu.Unlock()
			return 0, Result{}, ErrOverloaded
		}
		w = &waiter{cost: h.Cost, n: n, done: make(chan struct{})}
		e.waiting = append(e.waiting, w)
	}
	asks := v == verdictLow || w != nil && e.asking.CompareAndSwap(false, true)
	e.mu.Unlock()
	if asks {
		l.start(func() { l.refill(e) })
	}
	switch {
	case w != nil:
		return e.await(ctx, w, timeout)
	case v == verdictRefused:
		return 0, r, nil
	default:
		return n, r, nil
	}
}

// locked returns the lease of a hit's key, with its lock, following the hit's
// rule.
func (l *leases) locked(h *Hit, now moment) *lease {
	for {
		e, added := l.byKey.load(h.Key), false
		if e == nil {
			e, added = l.byKey.add(newLease(h.Key, now))
		}
		e.mu.Lock()
		if e.dropped {
			e.mu.Unlock()
			continue
		}
		// What is at hand of an older rule is given back with the next answer.
		e.rule, e.used = h.Rule, now
		if added {
			l.inUse.Add(1)
			l.beginTidying()
		}
		return e
	}
}

// await waits for the shared count's answer. Units that come when a waiter has
// left stay at hand.
func (e *lease) await(ctx context.Context, w *waiter, timeout time.Duration) (int64, Result, error) {
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	late := time.NewTimer(timeout)
	defer late.Stop()
	var err error
	select {
	case <-w.done:
	case <-ctx.Done():
		err = ctx.Err()
	case <-late.C:
		err = errLate
	}
	if err != nil && !e.leave(w) {
		return 0, Result{}, err
	}
	return w.granted, w.result, w.err
}

// refill asks the shared count until nobody wants more of it, or it fails.
func (l *leases) refill(e *lease) {
	failed := false
	for {
		e.mu.Lock()
		now, idle := l.elapsed(), l.idle(e.rule)
		if failed || e.drought.Load().holds(e.rule, 1, now) {
			idle = 0 // nothing is worth asking for ahead of need
		}
		q, wanted := e.ask(l.live(e.rule), idle, now)
		e.mu.Unlock()
		if !wanted {
			return
		}
		failed = l.put(q, e) != nil
	}
}

// put puts a question to the shared count and deals with the answer.
func (l *leases) put(q question, e *lease) error {
	c := Call{Op: Take, Hits: []Hit{{Rule: q.rule, Key: e.key, Cost: 1}}, Count: q.units}
	err := l.store.Do(context.Background(), &c)

	e.mu.Lock()
	q.stale = q.sent < l.lastReset.Load()
	var surplus int64
	if err != nil {
		e.fail(q, err)
	} else {
		surplus = e.deal(q, &c, l.live(q.rule), l.idle(q.rule), l.elapsed())
	}
	e.mu.Unlock()
	l.refund(context.Background(), q.rule, e.key, surplus)
	return err
}

// takeMany takes as many of n requests as there are units for, at hand and in the
// shared count.
func (l *leases) takeMany(ctx context.Context, h *Hit, n int64, timeout time.Duration) (int64, Result, error) {
	now := l.elapsed()
	e := l.locked(h, now)
	own, from := e.hand.withdraw(h.Rule, product(h.Cost, n), now)
	told, left := e.hand.told(), e.hand.left()
	e.mu.Unlock()
	mine := own / h.Cost
	if mine == n {
		return n, told.granted(left, now), nil
	}
	granted, r, err := l.takeExactly(ctx, h, n-mine, timeout)
	if err != nil {
		l.restore(e, h.Rule, own, from)
		return 0, Result{}, err
	}
	l.restore(e, h.Rule, own%h.Cost, from)
	r.Remaining += own % h.Cost
	return mine + granted, r, nil
}

// takeExactly asks the shared count for the very requests: for one that costs
// more than may lie idle, or where nothing may. They wait for nobody.
func (l *leases) takeExactly(ctx context.Context, h *Hit, n int64, timeout time.Duration) (int64, Result, error) {
	sent := l.elapsed()
	granted, r, err := l.ask(ctx, h, h.Cost, n, timeout)
	if err != nil || r.Reason == CostExceedsLimit {
		return granted, r, err
	}
	atHand := int64(0)
	if e := l.byKey.load(h.Key); e != nil {
		atHand = e.hand.left()
	}
	if granted == 0 && n == 1 && atHand > 0 && h.Cost <= r.Remaining+atHand {
		return l.takeWithHand(ctx, h, timeout)
	}
	if granted == 0 {
		now := l.elapsed()
		e := l.locked(h, now)
		if sent >= l.lastReset.Load() {
			e.remember(h, r, sent, now)
		}
		e.mu.Unlock()
	}
	r.Remaining += atHand
	return granted, r, nil
}

// takeWithHand takes what is at hand for a request, and from the shared count
// what is missing.
func (l *leases) takeWithHand(ctx context.Context, h *Hit, timeout time.Duration) (int64, Result, error) {
	now := l.elapsed()
	e := l.locked(h, now)
	own, from := e.hand.withdraw(h.Rule, h.Cost, now)
	e.mu.Unlock()
	granted, r, err := l.ask(ctx, h, h.Cost-own, 1, timeout)
	if granted == 0 {
		l.restore(e, h.Rule, own, from)
		r.Remaining += own
	}
	return granted, r, err
}

// restore puts units back to where they came from, or gives them back.
func (l *leases) restore(e *lease, r *Rule, units int64, to origin) {
	e.mu.Lock()
	rest := e.hand.deposit(units, to, l.idle(r), l.elapsed())
	e.mu.Unlock()
	if rest > 0 {
		l.start(func() { l.refund(context.Background(), r, e.key, rest) })
	}
}

// ask asks the shared count for n requests at a cost.
func (l *leases) ask(ctx context.Context, h *Hit, cost, n int64, timeout time.Duration) (int64, Result, error) {
	c := single(Take, h, n)
	defer c.release()
	c.Hits[0].Cost, c.Timeout = cost, timeout
	if err := l.store.Do(ctx, c); err != nil {
		return 0, Result{}, err
	}
	return c.Granted, c.Results[0], nil
}

// giveBack implements local.
func (l *leases) giveBack(h *Hit, n int64) {
	if h.Cost == 0 {
		return
	}
	units := product(h.Cost, n)
	if e := l.byKey.load(h.Key); e != nil {
		e.mu.Lock()
		valid, to := e.hand.valid(h.Rule, l.elapsed()), e.hand.origin()
		e.mu.Unlock()
		if valid {
			l.restore(e, h.Rule, units, to)
			return
		}
	}
	l.start(func() { l.refund(context.Background(), h.Rule, h.Key, units) })
}

// refund gives units back to the shared count. What cannot be given back stays
// counted until it expires by itself.
func (l *leases) refund(ctx context.Context, r *Rule, key string, units int64) {
	if units == 0 {
		return
	}
	_ = l.store.Do(ctx, &Call{Op: Refund, Hits: []Hit{{Rule: r, Key: key, Cost: units}}})
}

func (l *leases) live(r *Rule) int64 {
	live, _ := l.pods(r)
	return max(1, int64(live))
}

// idle is how many units may lie idle here.
func (l *leases) idle(r *Rule) int64 {
	if l.closed.Load() {
		return 0
	}
	return r.idle(l.live(r))
}

// start runs work in the background or, when the leases are closed, at once.
func (l *leases) start(work func()) {
	l.mu.Lock()
	if l.closed.Load() {
		l.mu.Unlock()
		work()
		return
	}
	l.work.Go(work)
	l.mu.Unlock()
}

// tidyEvery is how often units are looked for that are to be given back.
const tidyEvery = 250 * time.Millisecond

// beginTidying sees to it that leases are tidied until they are closed.
func (l *leases) beginTidying() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tidying || l.closed.Load() {
		return
	}
	l.tidying = true
	l.work.Go(func() {
		tick := time.NewTicker(tidyEvery)
		defer tick.Stop()
		for {
			select {
			case <-l.done:
				return
			case <-tick.C:
				l.giveBackAll(context.Background(), l.tidy())
			}
		}
	})
}

// Held is what a process holds of a limit with distribution Leased, of all its keys.
type Held struct {
	// Leases is how many keys have units at hand, and Units these.
	Leases, Units int64
}

// held is what can be spent, by rule.
func (l *leases) held() map[*Rule]Held {
	now, all := l.elapsed(), map[*Rule]Held{}
	for _, e := range l.byKey.all() {
		r, left := e.hand.rule.Load(), e.hand.left()
		if left > 0 && e.hand.valid(r, now) {
			held := all[r]
			all[r] = Held{held.Leases + 1, held.Units + left}
		}
	}
	return all
}

// unspent is units to be given back.
type unspent struct {
	rule  *Rule
	key   string
	units int64
}

// tidy drops the leases that are of no use any more, and returns what is to be
// given back.
func (l *leases) tidy() (back []unspent) {
	now := l.elapsed()
	for _, e := range l.byKey.all() {
		rule, units, useless := e.tidy(now)
		if units > 0 {
			back = append(back, unspent{rule, e.key, units})
		}
		if useless {
			l.byKey.remove(e)
			l.inUse.Add(-1)
		}
	}
	return back
}

// giveBackAll gives units of many keys back, many at the same time, which the
// store combines.
func (l *leases) giveBackAll(ctx context.Context, all []unspent) {
	const together = 64
	var wg sync.WaitGroup
	for some := range slices.Chunk(all, (len(all)+together)/together) {
		wg.Go(func() {
			for _, u := range some {
				l.refund(ctx, u.rule, u.key, u.units)
			}
		})
	}
	wg.Wait()
}

// close gives back all units at hand, and waits until nothing runs in the
// background, or the context ends. Requests can still be decided.
func (l *leases) close(ctx context.Context) {
	l.mu.Lock()
	again := l.closed.Swap(true)
	l.mu.Unlock()
	if again {
		return
	}
	close(l.done)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.giveBackAll(ctx, l.emptyAll())
		l.work.Wait()
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

func (l *leases) emptyAll() (back []unspent) {
	now := l.elapsed()
	for _, e := range l.byKey.all() {
		e.mu.Lock()
		rule := e.rule
		units := e.empty(now)
		e.mu.Unlock()
		if units > 0 {
			back = append(back, unspent{rule, e.key, units})
		}
	}
	return back
}
