package tallyman

import (
	"context"
	"slices"

	"github.com/tallyman-dev/tallyman/internal/limiter"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

// AdmitAll decides requests as one, for protocols that describe one request in
// several ways, such as the descriptors of Envoy's rate limit service. It charges
// every limit that one of them meets or, when one of these limits refuses, none. A
// counter that several of them meet is asked for their sum.
//
// The first decision is about all of them; it is the one to release, and the one
// that Options.Observer is told. The others are those of each request, in their
// order: a request is refused when one of its own limits refuses.
//
// All requests together may meet 255 counters; where they meet more, they are
// refused. Otherwise AdmitAll is as Admit.
func (l *Limiter) AdmitAll(ctx context.Context, rs []Request) (all Decision, each []Decision) {
	all, each = l.decideAll(ctx, rs, question{op: limiter.Take})
	l.observe(ctx, all)
	return all, each
}

// PeekAll answers as AdmitAll would, and charges nothing.
func (l *Limiter) PeekAll(ctx context.Context, rs []Request) (all Decision, each []Decision) {
	return l.decideAll(ctx, rs, question{op: limiter.Peek})
}

func (l *Limiter) decideAll(ctx context.Context, rs []Request, q question) (Decision, []Decision) {
	if len(rs) == 1 {
		d := l.decide(ctx, rs[0], q)
		return d, []Decision{d}
	}
	each := make([]Decision, len(rs))
	s := l.current.Load()
	if len(s.policies) == 0 {
		for i := range each {
			each[i] = l.unlimited()
		}
		return l.unlimited(), each
	}
	joint := newMeeting()
	defer joint.end()
	parts, places := make([]*meeting, len(rs)), make([][]int, len(rs))
	for i := range rs {
		parts[i] = newMeeting()
		if !l.isExempt(&rs[i]) {
			l.meet(parts[i], s, &rs[i])
		}
		places[i] = joint.join(parts[i])
	}
	l.ask(ctx, joint, q)
	for i, part := range parts {
		for j, place := range places[i] {
			part.limits[j] = joint.limits[place]
		}
		part.degraded = joint.degraded && len(part.call.Hits) > 0
		each[i] = part.conclude(l.random)
		if q.op != limiter.Peek {
			l.tops.count(part, each[i].Allowed)
		}
		part.end()
	}
	return joint.conclude(l.random), each
}

// join adds what another request meets, and returns where its limits are in
// m.limits.
func (m *meeting) join(part *meeting) (places []int) {
	for i := range part.limits {
		hit := slices.Index(part.places, i)
		if hit >= 0 {
			if same := m.find(part.call.Hits[hit].Key); same >= 0 {
				m.call.Hits[same].Cost = min(m.call.Hits[same].Cost+part.call.Hits[hit].Cost, policy.MaxInteger)
				places = append(places, m.places[same])
				continue
			}
			m.call.Hits = append(m.call.Hits, part.call.Hits[hit])
			m.places = append(m.places, len(m.limits))
		}
		places = append(places, len(m.limits))
		m.rules = append(m.rules, part.rules[i])
		m.limits = append(m.limits, part.limits[i])
	}
	m.wait(part.call.Timeout)
	return places
}

// find is the place in m.call.Hits of the hit of a counter, or -1.
func (m *meeting) find(key string) int {
	return slices.IndexFunc(m.call.Hits, func(h limiter.Hit) bool { return h.Key == key })
}
