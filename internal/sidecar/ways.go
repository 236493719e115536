package sidecar

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// The ways in, as metrics, traces and logs call them.
const (
	proxyWay       = "proxy"
	checkWay       = "check"
	forwardAuthWay = "forward-auth"
	rateLimitWay   = "rls"
	extAuthzWay    = "ext_authz"
)

// wayMetrics are those of what came in by one way. What most requests count has its
// counters at hand.
type wayMetrics struct {
	*metrics
	name     string
	latency  prometheus.Observer
	admitted prometheus.Counter
	allowed  *series
}

func (m *metrics) ofWay(name string) *wayMetrics {
	return &wayMetrics{
		metrics: m, name: name, latency: m.latency.WithLabelValues(name),
		admitted: m.requests.WithLabelValues("admitted", "", name),
		allowed:  newSeries(m.decisions.MustCurryWith(prometheus.Labels{"outcome": "allowed", "reason": "", "way": name})),
	}
}

// decided counts a decision and the time that it took.
func (w *wayMetrics) decided(d tallyman.Decision, took time.Duration) {
	w.latency.Observe(took.Seconds())
	switch {
	case !d.Allowed:
		w.requests.WithLabelValues("refused", string(d.Reason), w.name).Inc()
	case d.Reason != "":
		w.requests.WithLabelValues("admitted", string(d.Reason), w.name).Inc()
	default:
		w.admitted.Inc()
	}
	if d.Degraded {
		w.degraded.Inc()
	}
	for i := range d.Limits {
		w.said(&d.Limits[i])
	}
}

// said counts what a limit said.
func (w *wayMetrics) said(l *tallyman.LimitDecision) {
	limit := limitName{l.Policy, l.Limit}
	if l.Allowed && l.Reason == "" {
		w.allowed.inc(limit)
	} else {
		w.decisions.WithLabelValues(l.Policy, l.Limit, limitOutcome(l), string(l.Reason), w.name).Inc()
	}
	if isNear(l) {
		w.near.inc(limit)
	}
}

// isNear says whether a limit that has allowed a request has less than a tenth of its
// capacity left.
func isNear(l *tallyman.LimitDecision) bool {
	return l.Allowed && l.Counted && l.Remaining < (l.Capacity+9)/10
}

func limitOutcome(l *tallyman.LimitDecision) string {
	switch {
	case l.Allowed:
		return "allowed"
	case l.Shadow:
		return "shadow_refused"
	default:
		return "refused"
	}
}
