package sidecar

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/tallyman-dev/tallyman/internal/sidecar/tracing"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// metrics are what a sidecar counts. Labels are names of policies and limits
// that are in force, and words of ours: never anything of a request. docs/metrics.md
// is made of them.
type metrics struct {
	registry *prometheus.Registry

	requests, decisions *prometheus.CounterVec
	latency             *prometheus.HistogramVec
	near                *series
	ways                map[string]*wayMetrics

	expressions, overshoot          *prometheus.CounterVec
	degraded, corrupt, lost         prometheus.Counter
	unreported                      prometheus.Counter
	circuitOpen                     prometheus.Gauge
	storeOK, storeError, storeBatch prometheus.Observer
	garbage, loadFailures, rejected prometheus.Counter
	heartbeatFailures               prometheus.Counter
	policies, rejectedNow           prometheus.Gauge
	info                            *prometheus.GaugeVec

	// known are the limits that may have series, and whether they are in force.
	// It is the loader's goroutine's only.
	known map[limitName]bool
}

type limitName struct{ policy, limit string }

// The buckets, in seconds. A call to the store is one trip, from 50 µs; a decision in
// memory takes less than 10 µs, and one that fails storeTimeout, half a second unless a
// policy says otherwise.
var (
	storeBuckets    = prometheus.ExponentialBuckets(50e-6, 2, 16)
	decisionBuckets = []float64{
		10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1,
	}
	// batchBuckets are of calls: at most 512 share a trip.
	batchBuckets = prometheus.ExponentialBuckets(1, 2, 10)
)

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	for _, c := range m.collectors() {
		m.registry.MustRegister(c)
	}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// collectors makes the metrics, those of the Go runtime and of the process excepted.
func (m *metrics) collectors() []prometheus.Collector {
	return slices.Concat(m.ofDecisions(), m.ofTheStore(), m.ofDefinitions())
}

func (m *metrics) ofDecisions() []prometheus.Collector {
	m.requests = counters("requests_total", "Requests by outcome, admitted or refused, by reason, and by the way they came in: proxy, check, forward-auth, rls or ext_authz.",
		"outcome", "reason", "way")
	m.decisions = counters("decisions_total", "What each limit said about the requests that it met: allowed, refused or shadow_refused; by reason, and by the way they came in.",
		"policy", "limit", "outcome", "reason", "way")
	near := counters("near_limit_decisions_total", "Requests that a limit allowed and that left less than a tenth of its capacity to their key.",
		"policy", "limit")
	m.near = newSeries(near)
	m.latency = histograms("decision_duration_seconds", "Time of a decision, by the way its request came in, waiting for the store included.", decisionBuckets, "way")
	m.degraded = counter("degraded_decisions_total", "Requests that were decided without the store, or before the policies were known.")
	m.expressions = counters("expression_errors_total", "Requests for which a match, key or cost could not be evaluated, so that the safe side was taken.",
		"policy", "limit")
	m.overshoot = counters("overshoot_units_total", "Units that a limit with distribution Synced was found to have admitted above its requests.",
		"policy", "limit")
	m.ways = map[string]*wayMetrics{}
	for _, way := range []string{proxyWay, checkWay, forwardAuthWay, rateLimitWay, extAuthzWay} {
		m.ways[way] = m.ofWay(way)
	}
	return []prometheus.Collector{m.requests, m.decisions, near, m.latency, m.degraded, m.expressions, m.overshoot}
}

func (m *metrics) ofTheStore() []prometheus.Collector {
	latency := histograms("store_duration_seconds", "Time of a call to the store, waiting for its turn included, by result: ok or error.", storeBuckets, "result")
	batch := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "tallyman_store_batch_calls", Help: "Calls that shared a trip to a server of the store: the sum by the count is how many are combined.", Buckets: batchBuckets,
	})
	m.storeOK, m.storeError, m.storeBatch = latency.WithLabelValues("ok"), latency.WithLabelValues("error"), batch
	m.circuitOpen = gauge("store_circuit_open", "1 while the store keeps failing and is not asked, 0 otherwise.")
	m.corrupt = counter("counters_corrupt_total", "Counters that held garbage and have started anew.")
	m.lost = counter("units_lost_total", "Requests whose units were taken in vain, and could not be given back.")
	m.unreported = counter("backstop_units_unreported_total", "Units that were admitted while the store failed, and could not be charged to it when it was back.")
	return []prometheus.Collector{latency, batch, m.circuitOpen, m.corrupt, m.lost, m.unreported}
}

func (m *metrics) ofDefinitions() []prometheus.Collector {
	m.garbage = counter("events_ignored_total", "Messages on the definitions' channel that no manager sends.")
	m.loadFailures = counter("definitions_load_failures_total", "Attempts to read the definitions that failed; the last ones stay in force.")
	m.heartbeatFailures = counter("heartbeat_failures_total", "Reports of what is enforced that the store did not take, so that the manager may not know of it.")
	m.rejected = counter("definition_errors_total", "Definitions that could not be taken over when they were read; their last good versions stay in force.")
	m.policies = gauge("policies_in_force", "Policies that this sidecar enforces.")
	m.rejectedNow = gauge("definitions_rejected", "Policies whose newest definition could not be taken over.")
	m.info = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "tallyman_definitions_info", Help: "The revision of the definitions that was read last; always 1.",
	}, []string{"revision"})
	return []prometheus.Collector{m.garbage, m.loadFailures, m.heartbeatFailures, m.rejected, m.policies, m.rejectedNow, m.info}
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: "tallyman_" + name, Help: help})
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tallyman_" + name, Help: help}, labels)
}

func histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "tallyman_" + name, Help: help, Buckets: buckets}, labels)
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: "tallyman_" + name, Help: help})
}

// observer connects a limiter to the metrics and, about the store, to a tracer.
func (m *metrics) observer(tracer *tracing.Tracer) tallyman.Observer {
	return tallyman.Observer{
		StoreCalled: func(ctx context.Context, took time.Duration, err error) {
			m.storeCalled(took, err)
			tracer.StoreCalled(ctx, took, err)
		},
		StoreSent:        func(calls int) { m.storeBatch.Observe(float64(calls)) },
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

func (m *metrics) circuitChanged(open bool) {
	m.circuitOpen.Set(0)
	if open {
		m.circuitOpen.Set(1)
	}
}

func (m *metrics) storeCalled(took time.Duration, err error) {
	if err != nil {
		m.storeError.Observe(took.Seconds())
	} else {
		m.storeOK.Observe(took.Seconds())
	}
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
		m.near.drop(name)
		for _, way := range m.ways {
			way.allowed.drop(name)
		}
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

// watch adds what a limiter is asked for at each scrape. The time of the last read, from
// which follows how old what is enforced may be, is that of definitions that are
// followed: those of a file are read once, and are never old.
func (m *metrics) watch(l *tallyman.Limiter, follows bool) {
	m.registry.MustRegister(leaseCollector{l.Leases})
	if follows {
		m.registry.MustRegister(loadedAt(l.LoadedAt))
	}
}

func loadedAt(last func() time.Time) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tallyman_definitions_loaded_timestamp_seconds",
		Help: "When the definitions were last read, as seconds since 1970; 0 if they never were. There is none with a policy file.",
	}, func() float64 {
		if at := last(); !at.IsZero() {
			return float64(at.UnixMicro()) / 1e6
		}
		return 0
	})
}

// leaseCollector tells what is held of limits with distribution Leased.
type leaseCollector struct{ leases func() []tallyman.LeaseState }

var (
	leasesDesc = prometheus.NewDesc("tallyman_leases",
		"Keys of a limit with distribution Leased that have units at hand in this process.", []string{"policy", "limit"}, nil)
	idleDesc = prometheus.NewDesc("tallyman_lease_idle_units",
		"Units that this process has taken from the shared count and not spent.", []string{"policy", "limit"}, nil)
)

// Describe implements prometheus.Collector.
func (leaseCollector) Describe(descs chan<- *prometheus.Desc) {
	descs <- leasesDesc
	descs <- idleDesc
}

// Collect implements prometheus.Collector.
func (c leaseCollector) Collect(out chan<- prometheus.Metric) {
	for _, l := range c.leases() {
		out <- prometheus.MustNewConstMetric(leasesDesc, prometheus.GaugeValue, float64(l.Leases), l.Policy, l.Limit)
		out <- prometheus.MustNewConstMetric(idleDesc, prometheus.GaugeValue, float64(l.IdleUnits), l.Policy, l.Limit)
	}
}
