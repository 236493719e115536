package sidecar

import (
	"encoding/json"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// metrics are what a sidecar counts. Labels are names of policies and limits
// that are in force, and words of ours: never anything of a request.
type metrics struct {
	registry *prometheus.Registry

	requests, decisions, expressions *prometheus.CounterVec
	overshoot                        *prometheus.CounterVec
	degraded, corrupt, lost          prometheus.Counter
	unreported                       prometheus.Counter
	circuitOpen                      prometheus.Gauge
	storeLatency                     *prometheus.HistogramVec
	garbage, loadFailures, rejected  prometheus.Counter
	heartbeatFailures                prometheus.Counter
	policies, rejectedNow            prometheus.Gauge
	info                             *prometheus.GaugeVec

	// known are the limits that may have series, and whether they are in force.
	// It is the loader's goroutine's only.
	known map[limitName]bool
}

type limitName struct{ policy, limit string }

// storeBuckets go from 50 µs to 1.6 s: a call is one round trip.
var storeBuckets = prometheus.ExponentialBuckets(50e-6, 2, 16)

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: counters("requests_total", "Requests by outcome: admitted or refused.", "outcome", "reason"),
		decisions: counters("decisions_total", "What each limit said about the requests that it met: allowed, refused or shadow_refused.",
			"policy", "limit", "outcome", "reason"),
		expressions: counters("expression_errors_total", "Requests for which a match, key or cost could not be evaluated, so that the safe side was taken.",
			"policy", "limit"),
		degraded: counter("degraded_decisions_total", "Requests that were decided without the store, or before the policies were known."),
		corrupt:  counter("counters_corrupt_total", "Counters that held garbage and have started anew."),
		lost:     counter("units_lost_total", "Requests whose units were taken in vain, and could not be given back."),
		overshoot: counters("overshoot_units_total", "Units that a limit with distribution Synced was found to have admitted above its requests.",
			"policy", "limit"),
		unreported:  counter("backstop_units_unreported_total", "Units that were admitted while the store failed, and could not be charged to it when it was back."),
		circuitOpen: gauge("store_circuit_open", "1 while the store keeps failing and is not asked, 0 otherwise."),
		storeLatency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tallyman_store_duration_seconds", Help: "Time of a call to the store, by result: ok or error.", Buckets: storeBuckets,
		}, []string{"result"}),
		garbage:           counter("events_ignored_total", "Messages on the definitions' channel that no manager sends."),
		loadFailures:      counter("definitions_load_failures_total", "Attempts to read the definitions that failed; the last ones stay in force."),
		heartbeatFailures: counter("heartbeat_failures_total", "Reports of what is enforced that the store did not take, so that the manager may not know of it."),
		rejected:          counter("definition_errors_total", "Definitions that could not be taken over when they were read; their last good versions stay in force."),
		policies:          gauge("policies", "Policies in force."),
		rejectedNow:       gauge("definitions_rejected", "Policies whose newest definition could not be taken over."),
		info: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tallyman_definitions_info", Help: "The revision of the definitions that was read last; always 1.",
		}, []string{"revision"}),
	}
	m.registry.MustRegister(m.requests, m.decisions, m.expressions, m.degraded, m.corrupt, m.lost, m.storeLatency,
		m.overshoot, m.unreported, m.circuitOpen,
		m.garbage, m.loadFailures, m.heartbeatFailures, m.rejected, m.policies, m.rejectedNow, m.info,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: "tallyman_" + name, Help: help})
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tallyman_" + name, Help: help}, labels)
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: "tallyman_" + name, Help: help})
}

// observer connects a limiter to the metrics.
func (m *metrics) observer() tallyman.Observer {
	return tallyman.Observer{
		Decided:          m.decided,
		StoreCalled:      m.storeCalled,
		ExpressionFailed: func(policy, limit string) { m.expressions.WithLabelValues(policy, limit).Inc() },
		CounterCorrupt:   m.corrupt.Inc,
		UnitsLost:        m.lost.Inc,
		UnitsUnreported:  func(units int64) { m.unreported.Add(float64(units)) },
		Overshot: func(policy, limit string, units int64) {
			m.overshoot.WithLabelValues(policy, limit).Add(float64(units))
		},
		CircuitChanged:    m.circuitChanged,
		EventIgnored:      m.garbage.Inc,
		DefinitionsLoaded: m.loaded,
		LoadFailed:        func(error) { m.loadFailures.Inc() },
		HeartbeatFailed:   func(error) { m.heartbeatFailures.Inc() },
	}
}

func (m *metrics) decided(d tallyman.Decision) {
	outcome := "admitted"
	if !d.Allowed {
		outcome = "refused"
	}
	m.requests.WithLabelValues(outcome, string(d.Reason)).Inc()
	if d.Degraded {
		m.degraded.Inc()
	}
	for i := range d.Limits {
		l := &d.Limits[i]
		m.decisions.WithLabelValues(l.Policy, l.Limit, limitOutcome(l), string(l.Reason)).Inc()
	}
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

func (m *metrics) circuitChanged(open bool) {
	m.circuitOpen.Set(0)
	if open {
		m.circuitOpen.Set(1)
	}
}

func (m *metrics) storeCalled(took time.Duration, err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.storeLatency.WithLabelValues(result).Observe(took.Seconds())
}

// loaded notes what is in force.
func (m *metrics) loaded(s tallyman.State) {
	m.policies.Set(float64(len(s.Policies)))
	m.rejectedNow.Set(float64(len(s.Rejected)))
	m.rejected.Add(float64(len(s.Rejected)))
	m.info.Reset()
	m.info.WithLabelValues(s.Revision).Set(1)
	m.keepOnly(limitsOf(s.Policies))
}

// keepOnly drops the series of limits that are not in force: names come and go,
// and memory must not grow with them. It does so once more at the next load,
// since a request under way may be counted after the first time.
func (m *metrics) keepOnly(limits map[limitName]bool) {
	for name, wasInForce := range m.known {
		if limits[name] {
			continue
		}
		labels := prometheus.Labels{"policy": name.policy, "limit": name.limit}
		m.decisions.DeletePartialMatch(labels)
		m.expressions.DeletePartialMatch(labels)
		m.overshoot.DeletePartialMatch(labels)
		if wasInForce {
			limits[name] = false
		}
	}
	m.known = limits
}

func limitsOf(policies []tallyman.PolicyState) map[limitName]bool {
	limits := map[limitName]bool{}
	for i := range policies {
		var spec struct{ Limits []struct{ Name string } }
		_ = json.Unmarshal(policies[i].Spec, &spec) // cannot fail: it is the spec of a policy in force
		for _, l := range spec.Limits {
			limits[limitName{policies[i].Name, l.Name}] = true
		}
	}
	return limits
}

// watch adds the time of the last read, from which follows how old what is
// enforced may be.
func (m *metrics) watch(l *tallyman.Limiter) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tallyman_definitions_loaded_timestamp_seconds",
		Help: "When the definitions were last read, as seconds since 1970; 0 if they never were.",
	}, func() float64 {
		if at := l.LoadedAt(); !at.IsZero() {
			return float64(at.UnixMicro()) / 1e6
		}
		return 0
	}))
}
