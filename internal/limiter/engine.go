package limiter

import (
	"context"
	"errors"
	"slices"
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
	backstop := newBackstop(store, o.Pods, o.Events, time.Now)
	shared := &warmed{store: store, backstop: backstop}
	began := time.Now()
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

// now is a monotonic time in ns.
func (e *Engine) now() int64 { return int64(time.Since(e.began)) }

// Do implements Store. It fails with ErrInvalid, and for rules that were not made
// by PrepareLimit, and so have no failure policy, with the store's errors. What
// Settle, Refund, Charge and Renew cannot do is an error too.
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
	t := takes.Get().(*taking)
	defer t.release()
	t.begin(e, c)
	t.now = e.now()
	t.deadline = t.now + int64(c.timeout())
	if t.remembered() {
		return nil
	}
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

// Release ends the slots of Concurrency that a Take was granted under its Token,
// at the end of the request. It does nothing for any other token.
func (e *Engine) Release(ctx context.Context, token string) { e.holds.release(ctx, token) }

// taking is a take under way.
type taking struct {
	engine *Engine
	call   *Call
	// got is how many requests each hit was granted that is not decided by the
	// store, and by says by whom; they are given back what the call is not granted.
	got []int64
	by  []giver
	// now is the time on the engine's clock, as it was read last, and deadline that
	// at which the call's timeout ends: one is for all that a decision waits for.
	now, deadline int64
	// rest is the hits that the store decides, and places are theirs in the call.
	rest   Call
	places []int
}

// giver can be given back what it granted.
type giver interface{ giveBack(h *Hit, n int64) }

var takes = sync.Pool{New: func() any { return new(taking) }}

func (t *taking) begin(e *Engine, c *Call) {
	t.engine, t.call = e, c
	c.Granted = c.count()
	c.Results = c.Results[:0]
	for range c.Hits {
		c.Results = append(c.Results, Result{Allowed: true, Unknown: true})
		t.got, t.by = append(t.got, 0), append(t.by, nil)
	}
}

func (t *taking) release() {
	clear(t.by)
	clear(t.rest.Hits)
	t.engine, t.call = nil, nil
	t.got, t.by, t.places, t.rest.Hits = t.got[:0], t.by[:0], t.places[:0], t.rest.Hits[:0]
	takes.Put(t)
}

// left is what is left of the call's timeout. A step that finds none fails soon.
func (t *taking) left() time.Duration {
	return max(time.Millisecond, time.Duration(t.deadline-t.now))
}

// remembered answers a call that is known to be refused.
func (t *taking) remembered() bool {
	for i := range t.call.Hits {
		h := &t.call.Hits[i]
		if h.Shadow || t.engine.of(h.Rule) != nil {
			continue
		}
		if r, refused := t.engine.refusals.lookup(h, t.now); refused {
			t.call.Results[i], t.call.Granted = r, 0
			return true
		}
	}
	return false
}

// local decides the hits that need no store, the enforced ones or the shadows. A
// shadow that refuses stands in nobody's way.
func (t *taking) local(ctx context.Context, shadows bool) error {
	c := t.call
	for i := range c.Hits {
		h := &c.Hits[i]
		by := t.engine.of(h.Rule)
		if by == nil || h.Shadow != shadows || c.Granted == 0 {
			continue
		}
		if h.Rule.holdsSlots() {
			by = splitSlots{t.engine.splits, c.Token}
		}
		granted, r, err := by.take(ctx, h, c.Granted, t.left())
		t.now = t.engine.now()
		t.by[i] = by
		if err != nil {
			t.by[i] = t.engine.backstop
			if granted, r, err = t.engine.fail(c, h, c.Granted, err); err != nil {
				return err
			}
		}
		t.got[i], c.Results[i] = granted, r
		if !shadows {
			c.Granted = min(c.Granted, granted)
		}
	}
	return nil
}

// shared has the store decide the hits that are its to decide.
func (t *taking) shared(ctx context.Context) error {
	c := t.call
	for i := range c.Hits {
		if t.by[i] == nil && t.engine.of(c.Hits[i].Rule) == nil {
			t.rest.Hits = append(t.rest.Hits, c.Hits[i])
			t.places = append(t.places, i)
		}
	}
	if len(t.places) == 0 {
		return nil
	}
	t.rest.Op, t.rest.Count, t.rest.Token, t.rest.Timeout = Take, c.Granted, c.Token, t.left()
	sent := t.now
	err := t.engine.shared.store.Do(ctx, &t.rest)
	if err != nil {
		return t.withoutStore(err)
	}
	t.engine.shared.noteAt(&t.rest, t.engine.wall+sent/1000)
	c.Granted = t.rest.Granted
	for i, at := range t.places {
		c.Results[at] = t.rest.Results[i]
		if c.count() == 1 && !t.rest.Results[i].Allowed {
			t.engine.refusals.remember(&c.Hits[at], t.rest.Results[i], sent, t.engine.now())
		}
	}
	return nil
}

// withoutStore has the hits' failure policies decide what the store did not.
func (t *taking) withoutStore(failure error) error {
	c := t.call
	for _, at := range t.places {
		h := &c.Hits[at]
		granted, r, err := t.engine.fail(c, h, c.Granted, failure)
		if err != nil {
			return err
		}
		t.got[at], t.by[at], c.Results[at] = granted, t.engine.backstop, r
		if !h.Shadow {
			c.Granted = min(c.Granted, granted)
		}
	}
	return nil
}

// giveBackExcess gives back what was granted to more requests than the call is.
func (t *taking) giveBackExcess() {
	for i, by := range t.by {
		if excess := t.got[i] - t.call.Granted; by != nil && excess > 0 {
			by.giveBack(&t.call.Hits[i], excess)
		}
	}
}

// hold keeps the slots that were granted until they are released.
func (t *taking) hold() {
	s := &hold{store: t.engine.shared, every: maxWindow}
	s.inStore.Token, s.inStore.Timeout = t.call.Token, t.call.Timeout
	for i, h := range t.call.Hits {
		if !h.Rule.holdsSlots() {
			continue
		}
		s.every = min(s.every, h.Rule.limit.Window/3)
		if t.by[i] == nil {
			s.inStore.Hits = append(s.inStore.Hits, h)
		} else if by, ok := t.by[i].(keeper); ok && t.got[i] > 0 {
			s.elsewhere = append(s.elsewhere, kept{by, h})
		}
	}
	t.engine.holds.add(t.call.Token, s)
}

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
		granted, r = e.backstop.take(h, n)
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

// peek asks the shared count, and this pod's part of a Split.
func (e *Engine) peek(ctx context.Context, c *Call) error {
	err := e.elsewhere(ctx, c)
	if err == nil || errors.Is(err, ErrInvalid) {
		return err
	}
	c.Failure, c.Granted, c.Results = err, c.count(), c.Results[:0]
	for i := range c.Hits {
		h := &c.Hits[i]
		r := Result{Allowed: true, Degraded: true, Unknown: true, Reason: StoreUnavailable}
		if h.Rule.failure == "" {
			return err
		}
		if h.Rule.failure == policy.FailureDeny {
			r.Allowed, c.Granted = false, 0
		}
		c.Results = append(c.Results, r)
	}
	return nil
}

func (e *Engine) refund(ctx context.Context, c *Call) error {
	err := e.elsewhere(ctx, c)
	for i := range c.Hits {
		e.refusals.forget(c.Hits[i].Key, e.now())
	}
	return err
}

// elsewhere sends a call to where its hits are counted: the store or, those of a
// Split, this process.
func (e *Engine) elsewhere(ctx context.Context, c *Call) error {
	if !slices.ContainsFunc(c.Hits, isSplit) {
		return e.shared.Do(ctx, c)
	}
	return e.inParts(ctx, c)
}

func isSplit(h Hit) bool { return h.Rule.distribution.Mode == policy.Split }

// inParts carries out a call some of whose hits are of a Split: these one by one,
// and then all others in one call of the store. What was reserved of the former is
// given back when a later one refuses or fails.
func (e *Engine) inParts(ctx context.Context, c *Call) error {
	results := slices.Repeat([]Result{{Allowed: true, Unknown: true}}, len(c.Hits))
	granted := c.count()
	parts := partsOf(c)
	for i := range parts {
		part := &parts[i]
		err := e.doPart(ctx, &part.Call)
		if c.Op == Reserve && (err != nil || part.Granted == 0) {
			e.unreserve(parts[:i])
		}
		if err != nil {
			return err
		}
		granted = min(granted, part.Granted)
		for k, r := range part.Results {
			results[part.places[k]] = r
		}
		if c.Op == Reserve && granted == 0 {
			break
		}
	}
	c.Granted, c.Results = granted, results
	return nil
}

func (e *Engine) doPart(ctx context.Context, part *Call) error {
	if isSplit(part.Hits[0]) {
		return e.splits.do(part)
	}
	return e.shared.Do(ctx, part)
}

// callPart is a call about some of the hits of another, with their places in it.
type callPart struct {
	Call
	places []int
}

// partsOf are the parts of a call: one for each hit of a Split, and the last one
// for all others, if there are any.
func partsOf(c *Call) []callPart {
	var parts []callPart
	rest := callPart{Call: *c}
	rest.Hits, rest.Results = nil, nil
	for i, h := range c.Hits {
		if !isSplit(h) {
			rest.Hits, rest.places = append(rest.Hits, h), append(rest.places, i)
			continue
		}
		part := callPart{Call: *c, places: []int{i}}
		part.Hits, part.Results = []Hit{h}, nil
		parts = append(parts, part)
	}
	if len(rest.Hits) > 0 {
		parts = append(parts, rest)
	}
	return parts
}

// unreserve makes nothing of what was reserved of Splits. It fails only for what
// was not reserved either.
func (e *Engine) unreserve(parts []callPart) {
	for i := range parts {
		c, h := &parts[i].Call, parts[i].Hits[0]
		c.Op, c.Hits[0].Cost = Settle, 0
		_ = e.splits.do(c)
		if h.Rule.holdsSlots() { // to settle leaves them
			c.Op, c.Hits[0] = Refund, h
			_ = e.splits.do(c)
		}
	}
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
