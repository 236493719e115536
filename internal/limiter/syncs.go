package limiter

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxViews bounds the keys that are counted here. The store decides the
	// others.
	maxViews = 1 << 16
	// Exchanges follow one another at a tenth of the window, within these bounds,
	// when no interval is declared.
	minSyncInterval = 10 * time.Millisecond
	maxSyncInterval = time.Second
	// maxSilence is how many declared intervals a view holds without news.
	maxSilence = 3
	// A view that nobody asks for is kept for so long, or for maxSilence intervals.
	viewIdle = 10 * time.Second
	// exchangeTTL is how long the store remembers an exchange, and exchangeLife
	// for how long it is repeated: the last try arrives while it is remembered.
	exchangeTTL  = 30 * time.Second
	exchangeLife = exchangeTTL - 2*DefaultTimeout
	// maxRetryPause bounds the pause before a failed exchange is tried again.
	maxRetryPause = 5 * time.Second
	// maxLastExchanges bounds the exchanges at the end that are under way
	// together.
	maxLastExchanges = 512
)

// syncs decide limits by a view of the shared count for each key, without asking
// the store: a request passes when by that view there is room. Views are brought
// up to date at intervals, by an exchange that charges our units since the last
// one; see view. An exchange without an answer is repeated under the same token,
// so that its units are neither lost nor counted twice. Units that the shared
// count has no room for are charged when it has; until then this pod refuses.
//
// Where an overshoot is declared, our units that the store does not have are
// never more than this pod's part of it, so that all pods together stay within.
// An exchange begins when half of it is used, and so the interval follows the
// rate. What goes beyond, what meets no view yet, and what meets one that may be
// wrong is decided by the store.
//
// It is safe for concurrent use. Views that nobody asks for are dropped.
type syncs struct {
	store  Store
	pods   Pods
	events Events
	now    func() time.Time
	start  time.Time
	tokens *tokenSource

	seed    maphash.Seed
	shards  [localShards]viewShard
	views   atomic.Int64
	closed  atomic.Bool
	running sync.WaitGroup // refunds under way
}

type viewShard struct {
	mu    sync.RWMutex
	views map[string]*view
}

func newSyncs(store Store, pods Pods, events Events, now func() time.Time) *syncs {
	s := &syncs{
		store: store, pods: pods, events: events, now: now, start: now(),
		tokens: newTokenSource(), seed: maphash.MakeSeed(),
	}
	for i := range s.shards {
		s.shards[i].views = map[string]*view{}
	}
	return s
}

func (s *syncs) clock() int64 { return s.now().Sub(s.start).Microseconds() }

// take implements local.
func (s *syncs) take(ctx context.Context, h *Hit, n int64, timeout time.Duration) (int64, Result, error) {
	n = min(n, h.Rule.together())
	v := s.lock(h)
	if v == nil {
		return s.ask(ctx, nil, h, n, timeout)
	}
	granted, r, final := s.decide(v, h, n)
	v.mu.Unlock()
	if final {
		return granted, r, nil
	}
	more, r, err := s.ask(ctx, v, h, n-granted, timeout)
	if err != nil {
		s.giveBack(h, granted)
		return 0, Result{}, err
	}
	return granted + more, r, nil
}

// decide decides what a locked view can, and sees to its next exchange.
func (s *syncs) decide(v *view, h *Hit, n int64) (granted int64, r Result, final bool) {
	clock, interval, bound := s.clock(), intervalOf(h.Rule), s.bound(h.Rule)
	v.rule, v.usedAt = h.Rule, clock
	stale := bound == unbounded && clock-v.heardAt > maxSilence*interval
	if v.known && !stale {
		granted, r, final = v.decide(h, n, bound, clock)
	}
	if v.known && !v.exchanging && v.failures == 0 {
		at := v.begunAt + interval
		if v.unsent >= max(1, bound/2) || stale {
			at = clock
		}
		v.plan(at, clock)
	}
	return granted, r, final
}

// unbounded is more units than there are, and far from where numbers end.
const unbounded = 1 << 62

// bound is how many units of a pod the store may not know of.
func (s *syncs) bound(r *Rule) int64 {
	percent := int64(r.distribution.MaxOvershootPercent)
	if percent == 0 {
		return unbounded
	}
	live, _ := s.pods(r)
	return max(1, product(r.limit.Requests, percent)/100/int64(max(1, live)))
}

// intervalOf is the time between two exchanges, in µs.
func intervalOf(r *Rule) int64 {
	d := time.Duration(r.distribution.Interval)
	switch {
	case d > 0:
	case r.limit.Calendar != nil:
		d = maxSyncInterval
	default:
		d = max(minSyncInterval, min(maxSyncInterval, r.limit.Window/10))
	}
	return d.Microseconds()
}

// ask has the store decide n requests. v is nil when there is no view.
func (s *syncs) ask(ctx context.Context, v *view, h *Hit, n int64, timeout time.Duration) (int64, Result, error) {
	c := single(Take, h, n)
	defer c.release()
	c.Timeout, c.wantStates = timeout, true
	news := -1
	if v != nil {
		v.mu.Lock()
		if news = v.news; v.exchanging {
			news = -1
		}
		v.mu.Unlock()
	}
	if err := s.store.Do(ctx, c); err != nil {
		return 0, Result{}, err
	}
	if v != nil {
		v.mu.Lock()
		clock := s.clock()
		v.answered(c, news, clock)
		if v.unsure && !v.exchanging && v.failures == 0 {
			v.plan(clock, clock)
		}
		v.mu.Unlock()
	}
	return c.Granted, c.Results[0], nil
}

// giveBack implements local.
func (s *syncs) giveBack(h *Hit, n int64) {
	units := product(h.Cost, n)
	if units == 0 {
		return
	}
	v := s.lock(h)
	if v == nil {
		s.refund(h, n)
		return
	}
	defer v.mu.Unlock()
	v.rule = h.Rule
	clock := s.clock()
	v.add(-units, clock)
	v.unsent -= units
	if !v.exchanging && v.failures == 0 {
		v.plan(v.begunAt+intervalOf(h.Rule), clock)
	}
}

// refund gives back to the store, without a view.
func (s *syncs) refund(h *Hit, n int64) {
	c := &Call{Op: Refund, Hits: []Hit{*h}, Count: n, Token: s.tokens.next(), TokenTTL: exchangeTTL}
	s.running.Go(func() { _ = s.store.Do(context.Background(), c) })
}

// lock returns the view of a key, which is the caller's to unlock, or nil when
// there are too many.
func (s *syncs) lock(h *Hit) *view {
	for {
		v := s.find(h)
		if v == nil {
			return nil
		}
		v.mu.Lock()
		if !v.gone {
			return v
		}
		v.mu.Unlock()
	}
}

func (s *syncs) shard(key string) *viewShard {
	return &s.shards[maphash.String(s.seed, key)%localShards]
}

func (s *syncs) find(h *Hit) *view {
	shard := s.shard(h.Key)
	shard.mu.RLock()
	v := shard.views[h.Key]
	shard.mu.RUnlock()
	if v != nil {
		return v
	}
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if v := shard.views[h.Key]; v != nil {
		return v
	}
	if s.closed.Load() || s.views.Load() >= maxViews {
		return nil
	}
	s.views.Add(1)
	v = &view{key: h.Key, rule: h.Rule, turn: make(chan struct{}, 1), usedAt: s.clock()}
	idle := idleOf(h.Rule)
	v.due = v.usedAt + idle
	v.timer = time.AfterFunc(time.Duration(idle)*time.Microsecond, func() { s.ring(v) })
	shard.views[h.Key] = v
	return v
}

// idleOf is how long a view is kept that nobody asks for, in µs.
func idleOf(r *Rule) int64 { return max(viewIdle.Microseconds(), maxSilence*intervalOf(r)) }

// drop forgets a locked view.
func (s *syncs) drop(v *view) {
	v.gone = true
	v.timer.Stop()
	shard := s.shard(v.key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	delete(shard.views, v.key)
	s.views.Add(-1)
}

// ring exchanges what a view has, or drops it.
func (s *syncs) ring(v *view) {
	v.turn <- struct{}{}
	defer func() { <-v.turn }()
	v.mu.Lock()
	v.due = never
	clock := s.clock()
	idle := v.ours() == 0 && !v.unsure && v.usedAt < v.begunAt
	switch {
	case v.gone:
	case idle && clock-v.usedAt >= idleOf(v.rule):
		s.drop(v)
	case idle && v.failures == 0:
		v.plan(v.usedAt+idleOf(v.rule), clock)
	default:
		v.mu.Unlock()
		s.exchange(context.Background(), v)
		return
	}
	v.mu.Unlock()
}

// exchange carries out an exchange; its turn is held by the caller.
func (s *syncs) exchange(ctx context.Context, v *view) {
	v.mu.Lock()
	c := v.begin(s.clock(), s.tokens.next)
	v.mu.Unlock()
	err := s.store.Do(ctx, c)
	v.mu.Lock()
	clock := s.clock()
	overshoot := v.end(c, err, clock)
	if !v.gone {
		v.plan(s.next(v, clock), clock)
	}
	v.mu.Unlock()
	if overshoot > 0 && s.events.Overshoot != nil {
		s.events.Overshoot(c.Hits[0].Rule, overshoot)
	}
}

// next is when a view is to be looked at again after an exchange.
func (s *syncs) next(v *view, clock int64) int64 {
	interval := intervalOf(v.rule)
	switch {
	case v.failures > 0:
		pause := max(interval, (minSyncInterval << min(v.failures, 10)).Microseconds())
		return clock + min(pause, max(interval, maxRetryPause.Microseconds()))
	case v.unsure || v.unsent >= max(1, s.bound(v.rule)/2):
		return clock
	default:
		return v.begunAt + interval
	}
}

// close exchanges what is left within ctx, once those under way have ended. The
// store decides what is asked afterwards.
func (s *syncs) close(ctx context.Context) {
	s.closed.Store(true)
	slots := make(chan struct{}, maxLastExchanges)
	for _, v := range s.all() {
		slots <- struct{}{}
		s.running.Go(func() {
			s.leave(ctx, v)
			<-slots
		})
	}
	s.running.Wait()
}

func (s *syncs) all() []*view {
	var all []*view
	for i := range s.shards {
		shard := &s.shards[i]
		shard.mu.RLock()
		for _, v := range shard.views {
			all = append(all, v)
		}
		shard.mu.RUnlock()
	}
	return all
}

// leave drops a view, and exchanges what it has; once more if the answer is lost.
func (s *syncs) leave(ctx context.Context, v *view) {
	v.turn <- struct{}{}
	defer func() { <-v.turn }()
	v.mu.Lock()
	if !v.gone {
		s.drop(v)
	}
	v.evolve(s.clock())
	left := v.ours()
	v.mu.Unlock()
	for range 2 {
		if left == 0 {
			return
		}
		s.exchange(ctx, v)
		v.mu.Lock()
		left = v.ours()
		v.mu.Unlock()
	}
}
