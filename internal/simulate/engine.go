package simulate

import (
	"context"
	"slices"
	"time"

	"github.com/tallyman-dev/tallyman/internal/limiter"
	"github.com/tallyman-dev/tallyman/internal/match"
)

// storeTimeout bounds one decision. It is far longer than in production: a
// simulation waits rather than answer by a failure policy.
const storeTimeout = 30 * time.Second

// Reasons of refusals that no count is needed for.
const (
	keyMissing = "KeyMissing"
	keyDenied  = "KeyDenied"
)

// Clock is the time of a simulation.
type Clock struct {
	start time.Time
	now   time.Time
}

// NewClock returns a clock that stands at the start.
func NewClock(start time.Time) *Clock { return &Clock{start: start, now: start} }

// Now is the time of the request that is being decided.
func (c *Clock) Now() time.Time { return c.now }

// Micros is Now in µs since 1970.
func (c *Clock) Micros() int64 { return c.now.UnixMicro() }

func (c *Clock) set(sinceStart time.Duration) { c.now = c.start.Add(sinceStart) }

// Engine decides requests as a sidecar with these policies does, all counted in
// the store. It is a Decider for one goroutine.
type Engine struct {
	limits   []limit
	keyBases []string // of the limits
	clock    *Clock
	store    limiter.Store
	slots    slots

	// The rest is about the request at hand, and used again and again.
	met     []met
	hits    []limiter.Hit
	results []limiter.Result // of the hits
	granted []int64          // units that each hit got or gave back
	own     []LimitDecision
	call    limiter.Call
}

// met is a limit that a request meets.
type met struct {
	index  int    // in Engine.limits
	key    string // match.Outcome.Key
	denied string // why no count is needed to refuse
	hit    int    // in Engine.hits, if not denied
}

// NewEngine returns an engine whose store reads the clock. All its keys begin
// with the prefix and a colon.
func NewEngine(p *Policies, clock *Clock, store limiter.Store, prefix string) *Engine {
	e := &Engine{limits: p.sorted(), clock: clock, store: store, slots: slots{held: map[string][]slot{}}}
	for i := range e.limits {
		l := &e.limits[i]
		e.keyBases = append(e.keyBases, limiter.KeyBase(prefix, l.namespace, l.policy, l.matcher.Name, l.rule))
	}
	return e
}

// Limits are those of LimitDecision.Index.
func (e *Engine) Limits() []LimitInfo {
	infos := make([]LimitInfo, len(e.limits))
	for i := range e.limits {
		infos[i] = e.limits[i].LimitInfo
	}
	return infos
}

// KeyText is a request's key under a limit of Limits, see match.Limit.KeyText.
func (e *Engine) KeyText(index int, r *match.Request, client string) string {
	return e.limits[index].matcher.KeyText(r, client)
}

// Decide implements Decider.
func (e *Engine) Decide(ctx context.Context, r *Request) (Decision, error) {
	e.clock.set(r.Since)
	e.meet(r)
	if len(e.met) == 0 {
		return uncounted(r), nil
	}
	if d, denied := e.deny(); denied {
		return d, nil
	}
	if len(e.hits) == 0 { // denied in shadow only
		d := uncounted(r)
		d.Limits = e.own
		return d, nil
	}
	var allowed bool
	var err error
	switch r.Op {
	case Peek:
		allowed, err = e.peek(ctx)
	case Refund:
		allowed, err = true, e.refund(ctx)
	case TakeUpTo:
		allowed, err = e.takeUpTo(ctx, unitsOf(r))
	default:
		allowed, err = e.take(ctx)
	}
	if err != nil {
		return Decision{}, err
	}
	return e.conclude(allowed), nil
}

// unitsOf is the cost of a request to which no limit gives one.
func unitsOf(r *Request) int64 {
	if r.Cost == nil {
		return 1
	}
	return *r.Cost
}

// uncounted is the decision about a request that no limit counts or refuses.
func uncounted(r *Request) Decision {
	d := Decision{Allowed: true}
	if r.Op == Take || r.Op == TakeUpTo {
		d.Granted = unitsOf(r)
	}
	return d
}

// meet finds the limits that a request meets. CORS preflights meet none.
func (e *Engine) meet(r *Request) {
	e.met, e.hits = e.met[:0], e.hits[:0]
	if match.IsPreflight(r.Match.Method, r.Match.Header) {
		return
	}
	for i := range e.limits {
		o := e.limits[i].matcher.Evaluate(&r.Match)
		switch {
		case o.Verdict == match.Skip:
		case o.Verdict == match.Count:
			e.met = append(e.met, met{index: i, key: o.Key, hit: len(e.hits)})
			e.hits = append(e.hits, e.hitOf(i, &o, r.Cost))
		case o.Override != match.NoOverride:
			e.met = append(e.met, met{index: i, key: o.Key, denied: keyDenied})
		default:
			e.met = append(e.met, met{index: i, denied: keyMissing})
		}
	}
	e.results = slices.Grow(e.results[:0], len(e.hits))[:len(e.hits)]
	e.granted = slices.Grow(e.granted[:0], len(e.hits))[:len(e.hits)]
	clear(e.granted)
}

func (e *Engine) hitOf(i int, o *match.Outcome, cost *int64) limiter.Hit {
	l := &e.limits[i]
	hit := limiter.Hit{
		Rule: l.ruleFor(o), Key: limiter.CounterKey(e.keyBases[i], o.Key), Cost: o.Cost, Shadow: l.Shadow,
	}
	if cost != nil {
		hit.Cost = *cost
	}
	return hit
}

// deny refuses a request without asking the store, when an enforced limit does.
func (e *Engine) deny() (d Decision, denied bool) {
	e.own = e.own[:0]
	for _, m := range e.met {
		e.own = append(e.own, LimitDecision{Index: m.index, Allowed: m.denied == "", Key: m.key})
		if l := &e.limits[m.index]; m.denied != "" && !l.Shadow && !denied {
			d.Limit, d.Reason, denied = l.Name, m.denied, true
		}
	}
	d.Limits = e.own
	return d, denied
}

// take asks for the full cost of all hits.
func (e *Engine) take(ctx context.Context) (allowed bool, err error) {
	token := ""
	if slices.ContainsFunc(e.hits, hasSlots) {
		token = e.slots.newToken()
	}
	if err := e.askAll(ctx, limiter.Take, token); err != nil {
		return false, err
	}
	if e.call.Granted == 0 {
		return false, nil
	}
	e.slots.hold(token, e.hits, e.shadowsAllow())
	for i := range e.hits {
		e.granted[i] = e.hits[i].Cost
	}
	return true, nil
}

// shadowsAllow says whether the limits in shadow have counted a request that is
// admitted: all of them do, or none.
func (e *Engine) shadowsAllow() bool {
	for i := range e.hits {
		if e.hits[i].Shadow && !e.results[i].Allowed {
			return false
		}
	}
	return true
}

func (e *Engine) peek(ctx context.Context) (allowed bool, err error) {
	err = e.askAll(ctx, limiter.Peek, "")
	return e.call.Granted > 0, err
}

// takeUpTo takes n units or what the limits have left. Nobody else takes any
// between the two calls.
func (e *Engine) takeUpTo(ctx context.Context, n int64) (allowed bool, err error) {
	e.setCosts(0)
	if _, err := e.peek(ctx); err != nil {
		return false, err
	}
	left := n
	for i := range e.hits {
		if !e.hits[i].Shadow {
			left = min(left, e.results[i].Remaining)
		}
	}
	e.setCosts(max(left, min(n, 1))) // one unit is asked for to be refused
	return e.take(ctx)
}

func (e *Engine) setCosts(units int64) {
	for i := range e.hits {
		e.hits[i].Cost = units
	}
}

// refund gives back to each limit for itself, since one may have less to take
// back than another.
func (e *Engine) refund(ctx context.Context) error {
	for i := range e.hits {
		hit := e.hits[i : i+1]
		units := hit[0].Cost
		hit[0].Cost = 0
		if err := e.ask(ctx, limiter.Peek, "", hit); err != nil {
			return err
		}
		before := e.call.Results[0].Remaining
		give := e.refundUnits
		if hasSlots(hit[0]) {
			give = e.refundSlots
		}
		if err := give(ctx, hit, min(units, hit[0].Rule.Capacity()-before)); err != nil {
			return err
		}
		e.results[i] = e.call.Results[0]
		e.granted[i] = e.results[i].Remaining - before
	}
	return nil
}

func (e *Engine) refundUnits(ctx context.Context, hit []limiter.Hit, units int64) error {
	if units <= 0 {
		return nil
	}
	hit[0].Cost = units
	return e.ask(ctx, limiter.Refund, "", hit)
}

// refundSlots ends the oldest requests that hold slots, each as a whole, until
// so many units are given back. The last answer has been about the hit.
func (e *Engine) refundSlots(ctx context.Context, hit []limiter.Hit, units int64) error {
	goal := e.call.Results[0].Remaining + units
	for e.call.Results[0].Remaining < goal {
		oldest, ok := e.slots.release(hit[0].Key)
		if !ok {
			return nil
		}
		hit[0].Cost = oldest.units
		if err := e.ask(ctx, limiter.Refund, oldest.token, hit); err != nil {
			return err
		}
	}
	return nil
}

// askAll has the store carry out a call about all hits.
func (e *Engine) askAll(ctx context.Context, op limiter.Op, token string) error {
	if err := e.ask(ctx, op, token, e.hits); err != nil {
		return err
	}
	copy(e.results, e.call.Results)
	return nil
}

func (e *Engine) ask(ctx context.Context, op limiter.Op, token string, hits []limiter.Hit) error {
	e.call = limiter.Call{Op: op, Hits: hits, Token: token, Timeout: storeTimeout, Results: e.call.Results}
	return e.store.Do(ctx, &e.call)
}

// conclude makes one decision of the limits' answers.
func (e *Engine) conclude(allowed bool) Decision {
	e.own = e.own[:0]
	named := -1 // in e.met
	for i, m := range e.met {
		own := LimitDecision{Index: m.index, Key: m.key}
		if m.denied == "" {
			shadow := e.hits[m.hit].Shadow
			own.Allowed = e.results[m.hit].Allowed || allowed && !shadow
			if (allowed || !own.Allowed && !shadow) && (named < 0 || e.precedes(m.hit, e.met[named].hit, allowed)) {
				named = i
			}
		}
		e.own = append(e.own, own)
	}
	d := Decision{Allowed: allowed, Limits: e.own}
	if named >= 0 {
		e.name(&d, e.met[named])
	}
	return d
}

// precedes says whether hit a rather than b is what a decision is about. Both
// refused, or the request is allowed.
func (e *Engine) precedes(a, b int, allowed bool) bool {
	first, second := &e.results[a], &e.results[b]
	switch {
	case !allowed:
		return waitsLonger(first.RetryAfter, second.RetryAfter)
	case e.hits[a].Shadow != e.hits[b].Shadow:
		return e.hits[b].Shadow
	default:
		return first.Remaining < second.Remaining
	}
}

// waitsLonger compares times to wait, where 0 is for ever.
func waitsLonger(a, b time.Duration) bool {
	return b != 0 && (a == 0 || a > b)
}

// name makes a decision one about a limit.
func (e *Engine) name(d *Decision, m met) {
	result := &e.results[m.hit]
	d.Limit, d.Counted, d.Granted = e.limits[m.index].Name, true, e.granted[m.hit]
	d.Remaining, d.ResetAfter = result.Remaining, result.ResetAfter
	if !d.Allowed {
		d.Reason, d.RetryAfter = string(result.Reason), result.RetryAfter
	}
}
