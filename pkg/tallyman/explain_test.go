package tallyman

import (
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const explained = `{selector: {}, limits: [
	{name: per-client, requests: 2, window: 1h, algorithm: SlidingLog, key: [{header: {name: X-Api-Key}}],
		overrides: [{keys: [acme], requests: 1000}, {keys: [internal], action: Exempt}, {keys: [banned], action: Deny}]},
	{name: writes, requests: 5, window: 1m, match: [{methods: [POST]}], distribution: {mode: Leased}, failurePolicy: Deny},
	{name: address, requests: 10, window: 1m, algorithm: TokenBucket, burst: 20, cost: {requests: 3}, key: [{clientIP: {}}, {path: {}}],
		onMissingKey: Skip}]}`

func keyed(key string) Request {
	r := get("/v1//orders")
	r.Header = http.Header{"X-Api-Key": {key}}
	return r
}

func TestExplainTellsOfEveryLimitInForce(t *testing.T) {
	l := fromFile(t, doc("orders", explained), Options{})
	r := keyed("alice")
	r.ClientIP = netip.MustParseAddr("2001:db8::7")
	l.Admit(t.Context(), r)
	for range 2 { // the first has charged nothing
		got := l.Explain(t.Context(), r)
		want := []LimitExplanation{
			{
				Applies: true, Why: "every request", Counter: Counter{"orders", "per-client", []string{"alice"}}, Cost: 1,
				RedisKey:  "tallyman:c:default:orders:per-client:l3600000000:{#2bd806c97f0e00af1a1fc3328fa763a9}",
				Algorithm: "SlidingLog", Distribution: "Exact", FailurePolicy: "Backstop",
				Decision: LimitDecision{
					Policy: "orders", Limit: "per-client", Title: "per-client", Requests: 2, Capacity: 2, Window: time.Hour,
					Allowed: true, Counted: true, Remaining: 1, Headers: HeadersIETF,
				},
			}, {
				Why: "no match applies", Counter: Counter{"orders", "writes", nil},
				Algorithm: "SlidingWindow", Distribution: "Leased", FailurePolicy: "Deny",
				Decision: LimitDecision{
					Policy: "orders", Limit: "writes", Title: "writes", Requests: 5, Capacity: 5, Window: time.Minute, Headers: HeadersIETF,
				},
			}, {
				Applies: true, Why: "every request", Counter: Counter{"orders", "address", []string{"2001:db8::/64", "/v1/orders"}}, Cost: 3,
				RedisKey:  "tallyman:c:default:orders:address:t60000000:{10:2001:db8::10:/v1/orders}",
				Algorithm: "TokenBucket", Distribution: "Exact", FailurePolicy: "Backstop",
				Decision: LimitDecision{
					Policy: "orders", Limit: "address", Title: "address", Requests: 10, Capacity: 20, Window: time.Minute,
					Allowed: true, Counted: true, Remaining: 17, Headers: HeadersIETF,
				},
			},
		}
		if diff := cmp.Diff(want, got.Limits, cmpopts.IgnoreFields(LimitDecision{}, "ResetAfter")); diff != "" {
			t.Errorf("limits (-want +got):\n%s", diff)
		}
		if !got.Decision.Allowed || len(got.Decision.Limits) != 2 || got.Exempt != "" {
			t.Errorf("the decision is %+v", got)
		}
	}
}

func TestExplainRespectsOverrides(t *testing.T) {
	l := fromFile(t, doc("orders", explained), Options{})
	for key, c := range map[string]struct {
		why      string
		applies  bool
		requests int64
		reason   Reason
		counted  bool
	}{
		"acme":     {"overrides[0]: Limit", true, 1000, "", true},
		"internal": {"overrides[1]: Exempt", false, 2, "", false},
		"banned":   {"overrides[2]: Deny", true, 2, KeyDenied, false},
	} {
		e := l.Explain(t.Context(), keyed(key))
		got := e.Limits[0]
		if got.Why != c.why || got.Applies != c.applies || got.Decision.Requests != c.requests || got.Decision.Reason != c.reason ||
			(got.RedisKey != "") != c.counted || !cmp.Equal(got.Counter.Key, []string{key}) {
			t.Errorf("%s: %+v", key, got)
		}
		if e.Decision.Allowed == (c.reason == KeyDenied) {
			t.Errorf("%s: the decision is %+v", key, e.Decision)
		}
	}
}

func TestExplainSaysWhyNoLimitLooksAtARequest(t *testing.T) {
	l := fromFile(t, doc("orders", explained), Options{ProbeSources: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}})
	preflight, probe := get("/"), get("/")
	preflight.Method = "OPTIONS"
	preflight.Header = http.Header{"Origin": {"https://shop.example"}, "Access-Control-Request-Method": {"PUT"}}
	probe.Header = http.Header{"User-Agent": {"kube-probe/1.37"}}
	for want, r := range map[string]Request{"CORS preflight": preflight, "probe of the kubelet": probe} {
		if e := l.Explain(t.Context(), r); e.Exempt != want || !e.Decision.Allowed || len(e.Limits) != 0 {
			t.Errorf("got %+v, want %q", e, want)
		}
	}
}

func TestExplainTellsWhenTheStoreDoesNotAnswer(t *testing.T) {
	l, _ := scripted(t, doc("orders", explained), unavailable)
	e := l.Explain(t.Context(), keyed("alice"))
	if !e.Decision.Degraded || e.Limits[0].Decision.Counted || e.Limits[0].Decision.Reason != StoreUnavailable {
		t.Errorf("got %+v", e)
	}
}

func TestExplainTellsTheEarliestTimeToTryAgain(t *testing.T) {
	l := fromFile(t, doc("orders", `{selector: {}, response: {retryAfterJitter: 1h}, limits: [{name: x, requests: 1, window: 1m}]}`), Options{})
	l.Admit(t.Context(), get("/"))
	if e := l.Explain(t.Context(), get("/")); e.Decision.Allowed || e.Decision.RetryAfter != e.Limits[0].Decision.RetryAfter {
		t.Errorf("got %+v", e)
	}
}
