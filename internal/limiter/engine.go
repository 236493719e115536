package limiter

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// StoreUnavailable means that the store did not answer in time, so that the
// limit's failure policy decided.
const StoreUnavailable Reason = "StoreUnavailable"

// Engine decides by the distribution of each limit, over a store that has the
// shared count, and by the limit's failure policy when that does not answer. It
// is a Store itself, and safe for concurrent use.
//
// Only a Take is decided here, as far as the limits' distributions and the memory
// of refusals let it. Everything else goes to where its hits are counted.
type Engine struct {
	shared   *warmed
	refusals *refusals
	leases   *leases
	syncs    *syncs
	splits   *splits
	backstop *backstop
	holds    *holds
	// began is when the engine's clock began, and wall that time in µs since 1970.
	began time.Time
	wall  int64
}

// EngineOptions are what an Engine counts on besides its store.
type EngineOptions struct {
	// Pods tells the parts of limits; nil is one pod that is alone.
	Pods Pods
	// Events are told of what happens on the side of decisions.
	Events Events
}

// NewEngine returns an engine over a store, which stays the caller's. The engine
// has to be closed.
func NewEngine(store Store, o EngineOptions) *Engine {
	if o.Pods == nil {
		o.Pods = func(*Rule) (live, place int) { return 1, 0 }
	}
	began := time.Now()
	// The backstop is told times of this clock, which a step of the machine's does
	// not move, so that it has to read the same one.
	steady := func() time.Time { return began.Add(time.Since(began)) }
	backstop := newBackstop(store, o.Pods, o.Events, steady)
	shared := &warmed{store: store, backstop: backstop}
	return &Engine{
		shared:   shared,
		refusals: newRefusals(),
		leases:   newLeases(shared, o.Pods, nil),
		syncs:    newSyncs(shared, o.Pods, o.Events, time.Now),
		splits:   newSplits(o.Pods, time.Now),
		backstop: backstop,
		holds:    newHolds(),
		began:    began,
		wall:     began.UnixMicro(),
	}
}

// Close gives back what lies unused, and reports what is not counted yet, as far
// as the context allows.
func (e *Engine) Close(ctx context.Context) {
	var closing sync.WaitGroup
	for _, part := range []interface{ close(context.Context) }{e.leases, e.syncs, e.backstop, e.holds} {
		closing.Go(func() { part.close(ctx) })
	}
	closing.Wait()
}

// Held tells what lies at hand of the limits with distribution Leased, by rule: those
// of overrides are by themselves.
func (e *Engine) Held() map[*Rule]Held { return e.leases.held() }

// now is a monotonic time in ns.
func (e *Engine) now() int64 { return int64(time.Since(e.began)) }

// Do implements Store. It fails with ErrInvalid, and for rules that were not made
// by PrepareLimit, and so have no failure policy, with the store's errors. What
// Settle, Refund, Charge, Renew and Reset cannot do is an error too.
func (e *Engine) Do(ctx context.Context, c *Call) error {
	c.Failure = nil
	switch c.Op {
	case Take:
		return e.take(ctx, c)
	case Peek:
		return e.peek(ctx, c)
	case Reserve:
		return e.reserve(ctx, c)
	case Refund:
		return e.refund(ctx, c)
	case Reset:
		return e.reset(ctx, c)
	default:
		return e.elsewhere(ctx, c)
	}
}

func (e *Engine) take(ctx context.Context, c *Call) error {
	if h := &c.Hits; len(*h) == 1 && (*h)[0].Rule.distribution.Mode == policy.Leased && (*h)[0].Cost >= 0 && c.Count >= 0 {
		return e.lease(ctx, c)
	}
	slots := c.holdsSlots()
	if slots && c.Token == "" {
		c.Token = e.holds.tokens.next()
	}
	if err := c.validate(); err != nil {
		return err
	}
	return e.decide(ctx, c, slots)
}

// lease is the shortest way, of a hit that is decided in memory.
func (e *Engine) lease(ctx context.Context, c *Call) error {
	h := &c.Hits[0]
	granted, r, err := e.leases.take(ctx, h, c.count(), c.Timeout)
	if err != nil {
		if granted, r, err = e.fail(c, h, c.count(), err); err != nil {
			return err
		}
	}
	c.Granted = granted
	c.Results = append(c.Results[:0], r)
	return nil
}

// decide carries out a take: enforced hits first, and of these first those that
// are decided in memory. What one grants and a later one does not is given back.
func (e *Engine) decide(ctx context.Context, c *Call, slots bool) error {
	now := e.now()
	if e.remembered(c, now) {
		return nil
	}
	t := takes.Get().(*taking)
	defer t.release()
	t.begin(e, c)
	t.now, t.deadline = now, now+int64(c.timeout())
	err := t.local(ctx, false)
	if err == nil && c.Granted > 0 {
		err = t.shared(ctx)
	}
	if err == nil && c.Granted > 0 {
		err = t.local(ctx, true)
	}
	if err != nil {
		c.Granted = 0
	}
	t.giveBackExcess()
	if slots && c.Granted > 0 {
		t.hold()
	}
	return err
}

// remembered answers a call that is known to be refused: one of its hits is.
func (e *Engine) remembered(c *Call, now int64) bool {
	for i := range c.Hits {
		h := &c.Hits[i]
		if h.Shadow || e.of(h.Rule) != nil {
			continue
		}
		if r, refused := e.refusals.lookup(h, now); refused {
			c.unasked()
			c.Results[i], c.Granted = r, 0
			return true
		}
	}
	return false
}

// Release ends the slots of Concurrency that a Take was granted under its Token,
// at the end of the request. It does nothing for any other token.
func (e *Engine) Release(ctx context.Context, token string) { e.holds.release(ctx, token) }

// of returns who decides a rule's hits in this process, or nil if the store does.
func (e *Engine) of(r *Rule) local {
	switch r.distribution.Mode {
	case policy.Leased:
		return e.leases
	case policy.Synced:
		return e.syncs
	case policy.Split:
		return e.splits
	default:
		return nil
	}
}

// fail has a hit's failure policy decide n requests.
func (e *Engine) fail(c *Call, h *Hit, n int64, failure error) (granted int64, r Result, err error) {
	if errors.Is(failure, ErrInvalid) {
		return 0, r, failure
	}
	c.Failure = failure
	if !h.Rule.price(h.Cost).payable() {
		return 0, Result{Reason: CostExceedsLimit, Unknown: true, Degraded: true}, nil
	}
	switch h.Rule.failure {
	case policy.FailureBackstop:
		if c.Op == Peek {
			granted, r = e.backstop.look(h, n)
		} else {
			granted, r = e.backstop.take(h, n)
		}
	case policy.FailureAllow:
		granted, r.Allowed = n, true
	case policy.FailureDeny:
	default:
		return 0, r, failure
	}
	r.Degraded, r.Unknown = true, true
	if r.Reason == "" {
		r.Reason = StoreUnavailable
	}
	return granted, r, nil
}

// reserve takes from the counts that reservations are settled with, whatever the
// limits' distributions. What the failure policies decide is not reserved, and
// cannot be settled.
func (e *Engine) reserve(ctx context.Context, c *Call) error {
	err := e.elsewhere(ctx, c)
	if err == nil || errors.Is(err, ErrInvalid) {
		return err
	}
	t := takes.Get().(*taking)
	defer t.release()
	t.begin(e, c)
	for i := range c.Hits {
		t.places = append(t.places, i)
	}
	err = t.withoutStore(err)
	t.giveBackExcess()
	return err
}

// peek asks the shared count, and this pod's part of a Split. Without the store, the
// failure policies are asked.
func (e *Engine) peek(ctx context.Context, c *Call) error {
	failure := e.elsewhere(ctx, c)
	if failure == nil || errors.Is(failure, ErrInvalid) {
		return failure
	}
	c.Granted, c.Results = c.count(), c.Results[:0]
	for i := range c.Hits {
		h := &c.Hits[i]
		granted, r, err := e.fail(c, h, c.count(), failure)
		if err != nil {
			return err
		}
		if !h.Shadow {
			c.Granted = min(c.Granted, granted)
		}
		c.Results = append(c.Results, r)
	}
	return nil
}

func (e *Engine) refund(ctx context.Context, c *Call) error {
	if c.Token == "" && c.holdsSlots() {
		c.Token = e.holds.tokens.next() // that holds none: whoever holds slots names them
	}
	err := e.elsewhere(ctx, c)
	for i := range c.Hits {
		e.refusals.forget(c.Hits[i].Key, e.now())
	}
	return err
}

// warmed is the store with the backstop told of what it grants, so that this
// knows what the pod has admitted when the store fails.
type warmed struct {
	store    Store
	backstop *backstop
}

// Do implements Store.
func (w *warmed) Do(ctx context.Context, c *Call) error {
	err := w.store.Do(ctx, c)
	if err == nil {
		w.noteAt(c, w.backstop.now().UnixMicro())
	}
	return err
}

// noteAt notes what a call was granted at about a time, in µs since 1970.
func (w *warmed) noteAt(c *Call, now int64) {
	n := c.Granted
	switch c.Op {
	case Take, Reserve, Charge:
	case Refund:
		n = -n
	case Renew:
		n = 0
	default:
		return
	}
	if c.Granted == 0 {
		return
	}
	for i := range c.Hits {
		if h := &c.Hits[i]; h.Rule.failure == policy.FailureBackstop && !h.Shadow {
			w.backstop.noteAt(h, n, now)
		}
	}
}
