package tallyman

import (
	"context"

	"github.com/tallyman-dev/tallyman/internal/limiter"
	"github.com/tallyman-dev/tallyman/internal/match"
)

// Explanation is a decision with its reasons.
type Explanation struct {
	// Decision is as Peek's; its RetryAfter is without the policy's jitter.
	Decision Decision
	// Exempt says why no limit looks at the request, such as "CORS preflight"; it is
	// empty otherwise.
	Exempt string
	// Limits are all that are in force, by policy and in the order of their specs,
	// whether the request meets them or not. There are none when it is exempt.
	Limits []LimitExplanation
}

// LimitExplanation is one limit's part in an explanation.
type LimitExplanation struct {
	// Generation of the policy.
	Generation int64
	// Applies says whether the limit counts or refuses the request. Why tells in a
	// few words why it does or does not, by the fields of its spec: "match[1]",
	// "except[0]", "no match applies", "overrides[2]: Exempt".
	Applies bool
	Why     string
	// Counter is the request's. Its Key has no values where the limit leaves the
	// request alone by its match and except.
	Counter Counter
	// RedisKey is the counter's name in the store; empty when none is charged. That of
	// a Split is this process's own.
	RedisKey string
	// Cost in units of the limit, of a request that is charged.
	Cost int64

	Algorithm, Distribution, FailurePolicy string
	// Decision is that of Explanation.Decision about the limit, where it applies, and
	// has otherwise the limit's numbers only.
	Decision LimitDecision
}

// Explain tells what Admit would decide, and why, by the shared count: as Peek does, it
// leaves out what this process has at hand of a Leased limit, and has not exchanged of
// a Synced one. Nothing is charged, and no counter is made. It takes longer than Peek.
func (l *Limiter) Explain(ctx context.Context, r Request) Explanation {
	s := l.current.Load()
	if len(s.policies) == 0 {
		return Explanation{Decision: l.unlimited()}
	}
	if why := l.whyExempt(&r); why != "" {
		return Explanation{Decision: Decision{Allowed: true}, Exempt: why}
	}
	m := newMeeting()
	defer m.end()
	m.request = r.matchable(l.trustedHops)
	var e Explanation
	var places []int // in e.Limits, of those that the request meets
	for _, p := range s.policies {
		for i := range p.rules {
			limit, o := p.rules[i].explain(&m.request, r.Hits)
			if limit.Applies {
				m.add(&p.rules[i], o, r.Hits, len(s.policies) > 1)
				places = append(places, len(e.Limits))
			}
			e.Limits = append(e.Limits, limit)
		}
	}
	l.ask(ctx, m, question{op: limiter.Peek})
	e.Decision = m.conclude(func(int64) int64 { return 0 })
	for i, place := range places {
		e.Limits[place].decided(m.limits[i])
	}
	return e
}

// explain tells what the limit does with a request, but for what the store says.
func (r *rule) explain(request *match.Request, hits int64) (LimitExplanation, match.Outcome) {
	o := r.matcher.Explain(request)
	e := LimitExplanation{
		Generation:    r.policy.definition.Generation,
		Applies:       o.Verdict != match.Skip,
		Why:           o.Why,
		Counter:       Counter{Policy: r.template.Policy, Limit: r.template.Limit, Key: o.Values},
		Cost:          times(o.Cost, hits),
		Algorithm:     string(r.spec.Algorithm),
		Distribution:  string(r.spec.Distribution.Mode),
		FailurePolicy: string(r.spec.FailurePolicy),
		Decision:      r.template,
	}
	limit := r.of(o.Outcome)
	if limit == nil { // an override without numbers
		limit = r.limit
	}
	e.Decision.numbersOf(limit)
	if o.Verdict == match.Count {
		e.RedisKey = limiter.CounterKey(r.keyBase, o.Key)
	}
	return e, o.Outcome
}

// decided takes over a decision. That about a denied key has no numbers.
func (e *LimitExplanation) decided(d LimitDecision) {
	d.Requests, d.Capacity, d.Window = e.Decision.Requests, e.Decision.Capacity, e.Decision.Window
	e.Decision = d
}
