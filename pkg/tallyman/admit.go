package tallyman

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/tallyman-dev/tallyman/internal/limiter"
	"github.com/tallyman-dev/tallyman/internal/match"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

// Admit decides a request and charges it to every limit that it meets, or, when
// one of them refuses, to none.
//
// It answers always: what fails becomes a decision, by the limits'
// failurePolicy, and is marked as degraded. It waits for the store no longer
// than the smallest storeTimeout of the policies that the request meets; on a
// Redis Cluster giving back what was taken in vain can add 100 ms. The end of ctx
// does not cut it short: a client that goes away in the middle must not look
// like a store that fails, and its request has been charged or has not.
//
// CORS preflights are admitted without being counted, and so are probes of the
// kubelet that come straight from Options.ProbeSources.
func (l *Limiter) Admit(ctx context.Context, r Request) Decision {
	d := l.decide(ctx, r, question{op: limiter.Take})
	l.observe(ctx, d)
	return d
}

func (l *Limiter) observe(ctx context.Context, d Decision) {
	l.observer.Decided(ctx, d)
	if !d.Allowed && l.logger.Enabled(ctx, slog.LevelDebug) {
		l.logger.Debug("Refused a request", "policy", d.Policy, "limit", d.Limit, "reason", d.Reason)
	}
}

// Peek answers as Admit would, and charges nothing.
func (l *Limiter) Peek(ctx context.Context, r Request) Decision {
	return l.decide(ctx, r, question{op: limiter.Peek})
}

// question is what is asked of the limits that a request meets.
type question struct {
	op       limiter.Op
	token    string
	tokenTTL time.Duration
}

func (l *Limiter) decide(ctx context.Context, r Request, q question) Decision {
	s := l.current.Load()
	if len(s.policies) == 0 {
		return l.unlimited()
	}
	if l.isExempt(&r) {
		return Decision{Allowed: true}
	}
	m := newMeeting()
	defer m.end()
	l.meet(m, s, &r)
	l.ask(ctx, m, q)
	d := m.conclude(l.random)
	if q.op != limiter.Peek {
		l.tops.count(m, d.Allowed)
	}
	return d
}

// unlimited is the decision where there are no policies.
func (l *Limiter) unlimited() Decision {
	if !l.IsReady() {
		return Decision{Allowed: true, Degraded: true, Reason: DefinitionsUnknown}
	}
	return Decision{Allowed: true}
}

// isExempt recognises requests that no limit counts.
func (l *Limiter) isExempt(r *Request) bool { return l.whyExempt(r) != "" }

// whyExempt says why no limit counts a request; it is empty when they do.
func (l *Limiter) whyExempt(r *Request) string {
	switch {
	case match.IsPreflight(r.Method, r.Header):
		return "CORS preflight"
	case r.isProbe(l.probeSources):
		return "probe of the kubelet"
	default:
		return ""
	}
}

// isDenied says whether a limit refuses whatever the count is.
func isDenied(d LimitDecision) bool {
	return (d.Reason == KeyMissing || d.Reason == KeyDenied) && d.refuses()
}

// meeting is a request and the limits that it meets. Its decisions are the caller's
// to keep; all else is used again.
type meeting struct {
	request match.Request
	rules   []*rule
	limits  []LimitDecision // by place in rules
	// call asks the engine, and places are those of its hits, in rules. Its timeout is
	// the smallest of the policies that count the request.
	call     limiter.Call
	places   []int
	degraded bool
	release  func() // nil when there is nothing to release
}

var meetings = sync.Pool{New: func() any { return new(meeting) }}

func newMeeting() *meeting { return meetings.Get().(*meeting) }

// end lets others use the meeting. It holds on to nothing of the request.
func (m *meeting) end() {
	clear(m.rules)
	clear(m.call.Hits)
	*m = meeting{
		rules: m.rules[:0], places: m.places[:0],
		call: limiter.Call{Hits: m.call.Hits[:0], Results: m.call.Results[:0]},
	}
	meetings.Put(m)
}

// meet asks every limit of every policy what it does with the request.
func (l *Limiter) meet(m *meeting, s *snapshot, r *Request) {
	m.request = r.matchable(l.trustedHops)
	for _, e := range s.policies {
		for i := range e.rules {
			rule := &e.rules[i]
			o := rule.matcher.Evaluate(&m.request)
			if o.Err != nil {
				l.observer.ExpressionFailed(rule.template.Policy, rule.template.Limit)
				l.logger.Debug("Took the safe side", "policy", rule.template.Policy, "error", o.Err)
			}
			if o.Verdict != match.Skip {
				m.add(rule, o, r.Hits, len(s.policies) > 1)
			}
		}
	}
}

func (m *meeting) add(r *rule, o match.Outcome, hits int64, severalPolicies bool) {
	d := r.template
	if severalPolicies {
		d.Title = r.qualified
	}
	switch {
	case o.Verdict == match.Deny && o.Override != match.NoOverride:
		d.Reason = KeyDenied
	case o.Verdict == match.Deny:
		d.Reason = KeyMissing
	default:
		d.Allowed = true // unless the store, or the want of it, says otherwise
		limit := r.of(o)
		d.numbersOf(limit)
		m.call.Hits = append(m.call.Hits, limiter.Hit{
			Rule: limit, Key: limiter.CounterKey(r.keyBase, o.Key), Cost: times(o.Cost, hits), Shadow: d.Shadow,
		})
		m.places = append(m.places, len(m.limits))
		m.wait(r.policy.timeout)
	}
	m.rules = append(m.rules, r)
	m.limits = append(m.limits, d)
}

// wait bounds the call by another timeout, if that is set.
func (m *meeting) wait(timeout time.Duration) {
	if m.call.Timeout == 0 || timeout != 0 && timeout < m.call.Timeout {
		m.call.Timeout = timeout
	}
}

// times is the cost of so many hits, and at most policy.MaxInteger, which is more
// than any limit has.
func times(cost, hits int64) int64 {
	if hits <= 1 {
		return cost
	}
	if cost > policy.MaxInteger/hits {
		return policy.MaxInteger
	}
	return cost * hits
}

// ask puts a question about the hits to the engine, all in one call. A request that
// lacks a key, or whose key is denied, is refused before the store is asked.
func (l *Limiter) ask(ctx context.Context, m *meeting, q question) {
	if len(m.call.Hits) == 0 || slices.ContainsFunc(m.limits, isDenied) {
		return
	}
	if err := l.do(ctx, m, q); err != nil {
		l.logger.Error("A request could not be decided, and is refused", "error", err)
		m.refuse()
		return
	}
	for i, result := range m.call.Results {
		m.limits[m.places[i]].answer(result)
		m.degraded = m.degraded || result.Degraded
	}
	if token := m.call.Token; q.op == limiter.Take && token != "" && m.call.Granted > 0 {
		m.release = func() { l.engine.Release(context.WithoutCancel(ctx), token) }
	}
}

// do puts a question to the engine. The end of ctx does not cut it short.
func (l *Limiter) do(ctx context.Context, m *meeting, q question) error {
	m.call.Op, m.call.Token, m.call.TokenTTL = q.op, q.token, q.tokenTTL
	return l.engine.Do(context.WithoutCancel(ctx), &m.call)
}

// refuse is for what cannot happen: hits that no engine takes.
func (m *meeting) refuse() {
	for _, place := range m.places {
		m.limits[place].Allowed, m.limits[place].Reason = false, StoreUnavailable
	}
	m.degraded = true
}

// conclude makes one decision of those of the limits.
func (m *meeting) conclude(random func(n int64) int64) Decision {
	var jitter time.Duration
	d := Decision{Allowed: true, Degraded: m.degraded, Limits: m.limits, release: m.release}
	if m.degraded {
		d.Reason = StoreUnavailable
	}
	for i := range m.limits {
		refusal := &m.limits[i]
		if refusal.refuses() && (d.Allowed || waitsLonger(refusal.RetryAfter, d.RetryAfter)) {
			d.Allowed = false
			d.Reason, d.RetryAfter = refusal.Reason, refusal.RetryAfter
			d.Policy, d.Limit = refusal.Policy, refusal.Limit
			d.Response, jitter = m.rules[i].policy.response, m.rules[i].policy.jitter
		}
	}
	d.RetryAfter = later(d.RetryAfter, jitter, random)
	return d
}

// later is a time to wait and up to jitter more, at random: clients that are refused
// at the same time do not come back at the same time. Where there is no time to wait
// for, none is made up.
//
// It goes in steps, so that some wait the least and some the most that there is:
// told in whole seconds, the waits are as far apart as the jitter, too.
func later(wait, jitter time.Duration, random func(n int64) int64) time.Duration {
	if wait == 0 || jitter == 0 {
		return wait
	}
	step := min(jitter/64, time.Second)
	return wait + step*time.Duration(random(int64(jitter/step)+1))
}

// waitsLonger compares times to wait, where 0 is for ever.
func waitsLonger(a, b time.Duration) bool {
	return b != 0 && (a == 0 || a > b)
}
