package sidecar

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/testredis"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// value is the sum of a metric's series.
func value(t *testing.T, m *metrics, name string) (sum float64) {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, metric := range f.GetMetric() {
			sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
		}
	}
	return sum
}

func view(handler http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w
}

func TestMetricsTellOfDecisionsAndNothingOfRequests(t *testing.T) {
	l, m := inMemory(t,
		`limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog, key: [{header: {name: X-Api-Key}}]}]`,
		`enforcement: Shadow, limits: [{name: watched, requests: 0, window: 1h}]`)
	r := tallyman.Request{Method: "GET", Path: "/sesame", Header: http.Header{"X-Api-Key": {"sesame"}}}
	doors := newDoors(l, m, nil, silent)
	doors.proxy.Admit(t.Context(), r)
	doors.extAuthz.Admit(t.Context(), r)
	got := view(newAdmin(t.Context(), l, m.registry), "/metrics").Body.String()
	for _, want := range []string{
		`tallyman_requests_total{outcome="admitted",reason="",way="proxy"} 1`,
		`tallyman_requests_total{outcome="refused",reason="LimitExceeded",way="ext_authz"} 1`,
		`tallyman_decisions_total{limit="x",outcome="allowed",policy="a",reason="",way="proxy"} 1`,
		`tallyman_decisions_total{limit="x",outcome="refused",policy="a",reason="LimitExceeded",way="ext_authz"} 1`,
		`tallyman_decisions_total{limit="watched",outcome="shadow_refused",policy="b",reason="CostExceedsLimit",way="proxy"} 1`,
		`tallyman_near_limit_decisions_total{limit="x",policy="a"} 1`,
		`tallyman_decision_duration_seconds_count{way="proxy"} 1`,
		`tallyman_store_duration_seconds_count{result="ok"} 2`,
		`tallyman_policies_in_force 2`,
		`go_goroutines`,
		`process_resident_memory_bytes`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no %s", want)
		}
	}
	if strings.Contains(got, "sesame") {
		t.Error("the metrics tell of a request")
	}
}

func TestMetricsOfLimitsThatAreGoneGoToo(t *testing.T) {
	m := newMetrics()
	inForce := func(policies ...string) (s tallyman.State) {
		for _, p := range policies {
			name, limit, _ := strings.Cut(p, "/")
			s.Policies = append(s.Policies, tallyman.PolicyState{Name: name, Spec: json.RawMessage(`{"limits":[{"name":"` + limit + `"}]}`)})
		}
		return s
	}
	count := func(policy, limit string) {
		m.ways[proxyWay].decided(tallyman.Decision{Limits: []tallyman.LimitDecision{
			{Policy: policy, Limit: limit, Allowed: true, Counted: true, Capacity: 10},
		}}, 0)
		m.expressions.WithLabelValues(policy, limit).Inc()
	}
	expect := func(when string, want float64) {
		t.Helper()
		for _, name := range []string{"tallyman_decisions_total", "tallyman_near_limit_decisions_total", "tallyman_expression_errors_total"} {
			if got := value(t, m, name); got != want {
				t.Errorf("%s: %s is %v in all, want %v", when, name, got, want)
			}
		}
	}
	m.loaded(inForce("a/x", "b/x"))
	count("a", "x")
	count("b", "x")
	m.loaded(inForce("b/x"))
	expect("a policy has gone", 1)
	count("a", "x") // by a request under way
	m.loaded(inForce("b/y"))
	expect("what a late request counted has gone, and so has a limit", 0)
	count("b", "y")
	count("b", "x")
	m.loaded(inForce("b/y"))
	expect("a limit has stayed", 1)
	m.loaded(inForce())
	m.loaded(inForce())
	if len(m.known) != 0 {
		t.Errorf("still known: %v", m.known)
	}
}

func TestFailedHeartbeatsAreCounted(t *testing.T) {
	m := newMetrics()
	m.observer(nil).HeartbeatFailed(errors.New("NOPERM"))
	if got := value(t, m, "tallyman_heartbeat_failures_total"); got != 1 {
		t.Errorf("one failure counts as %v", got)
	}
}

func TestPoliciesInForceCanBeSeen(t *testing.T) {
	l, m := inMemory(t, roomy)
	w := view(newAdmin(t.Context(), l, m.registry), "/debug/policies")
	var got struct {
		Policies []struct {
			Namespace, Name string
			Spec            struct{ Limits []struct{ Window string } }
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Policies) != 1 || got.Policies[0].Name != "a" || got.Policies[0].Spec.Limits[0].Window != "1h" {
		t.Errorf("got %s", w.Body)
	}
}

func TestReadinessFollowsTheFirstLoadAndTheDrain(t *testing.T) {
	server := testredis.Start(t)
	server.Kill()
	m := newMetrics()
	l, err := tallyman.New(t.Context(), tallyman.Options{Store: server.URL(), Namespace: "shop", Observer: m.observer(nil)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(context.Background())
	ctx, drain := context.WithCancel(t.Context())
	admin := newAdmin(ctx, l, m.registry)
	ready := func() bool { return view(admin, "/readyz").Code == http.StatusOK }

	eventually(t, "a load to fail", func() bool { return value(t, m, "tallyman_definitions_load_failures_total") > 0 })
	if ready() {
		t.Error("ready before the definitions were read")
	}
	server.Restart(t)
	eventually(t, "readiness", ready)
	failures := value(t, m, "tallyman_definitions_load_failures_total")
	server.Kill()
	eventually(t, "another load to fail", func() bool { return value(t, m, "tallyman_definitions_load_failures_total") > failures })
	if !ready() {
		t.Error("an outage of Redis has made the sidecar unready")
	}
	drain()
	if ready() || view(admin, "/healthz").Code != http.StatusOK {
		t.Error("while draining: want unready and healthy")
	}
}
