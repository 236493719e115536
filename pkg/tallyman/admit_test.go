package tallyman

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tallyman-dev/tallyman/internal/limiter"
)

// script is a store that records what it is asked, and answers as it is told.
type script struct {
	calls  [][]limiter.Hit
	within []time.Duration // the timeouts of the calls
	answer func([]limiter.Hit) ([]limiter.Result, error)
}

func (s *script) Do(ctx context.Context, c *limiter.Call) error {
	s.calls = append(s.calls, slices.Clone(c.Hits))
	s.within = append(s.within, c.Timeout)
	if err := ctx.Err(); err != nil {
		return err
	}
	var err error
	c.Results, err = s.answer(c.Hits)
	return err
}

func admitAll(hits []limiter.Hit) ([]limiter.Result, error) {
	results := make([]limiter.Result, len(hits))
	for i := range results {
		results[i].Allowed = true
	}
	return results, nil
}

func unavailable([]limiter.Hit) ([]limiter.Result, error) { return nil, errors.New("unavailable") }

// refusing answers that these hits are refused, by place, with the time to wait.
func refusing(waits map[int]limiter.Result) func([]limiter.Hit) ([]limiter.Result, error) {
	return func(hits []limiter.Hit) ([]limiter.Result, error) {
		results, _ := admitAll(hits)
		for place, r := range waits {
			results[place] = r
		}
		return results, nil
	}
}

// doc is a document of a policy file.
func doc(name, spec string) string {
	return "---\napiVersion: tallyman.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: " + name + "}\nspec: " + spec + "\n"
}

// scripted is a limiter with these policies, all of whose counters are a script.
func scripted(t *testing.T, yaml string, answer func([]limiter.Hit) ([]limiter.Result, error)) (*Limiter, *script) {
	t.Helper()
	l := fromFile(t, yaml, Options{})
	s := &script{answer: answer}
	l.engine = l.newEngine(s)
	return l, s
}

// The jitter is that of the policy that refuses, and goes on top of the longest wait.
func TestAJitterOnlyEverAdds(t *testing.T) {
	two := doc("a", `{selector: {}, response: {retryAfterJitter: 1m}, limits: [{name: x, requests: 1, window: 1m}]}`) +
		doc("b", `{selector: {}, response: {retryAfterJitter: 10ms}, limits: [{name: x, requests: 1, window: 1m}]}`)
	for name, c := range map[string]struct {
		random func(n int64) int64
		more   time.Duration
	}{
		"the least": {func(int64) int64 { return 0 }, 0},
		"the most":  {func(n int64) int64 { return n - 1 }, 10 * time.Millisecond},
	} {
		l, _ := scripted(t, two, refusing(map[int]limiter.Result{
			0: {Reason: limiter.LimitExceeded, RetryAfter: time.Second},
			1: {Reason: limiter.LimitExceeded, RetryAfter: 3 * time.Second},
		}))
		l.random = c.random
		d := l.Admit(t.Context(), get("/"))
		if d.Policy != "b" || d.RetryAfter != d.Limits[1].RetryAfter+c.more {
			t.Errorf("%s: %+v", name, d)
		}
	}

	l, _ := scripted(t, two, refusing(map[int]limiter.Result{0: {Reason: limiter.CostExceedsLimit}}))
	if d := l.Admit(t.Context(), get("/")); d.Allowed || d.RetryAfter != 0 {
		t.Errorf("a request that never passes is told to wait %v", d.RetryAfter)
	}
}

func TestAdmitAsksForAllPoliciesInOneCall(t *testing.T) {
	l, s := scripted(t,
		doc("a", `{selector: {}, storeTimeout: 400ms, limits: [{name: x, requests: 1, window: 1s}, {name: second, requests: 1, window: 1m}]}`)+
			doc("b", `{selector: {}, storeTimeout: 300ms, limits: [{name: x, requests: 1, window: 1s}]}`)+
			doc("c", `{selector: {}, storeTimeout: 1ms, limits: [{name: x, requests: 1, window: 1s, match: [{methods: [PUT]}]}]}`),
		admitAll)
	d := l.Admit(t.Context(), get("/"))
	if !d.Allowed || len(s.calls) != 1 || len(s.calls[0]) != 3 {
		t.Fatalf("allowed is %v after calls %v, want one call with 3 hits", d.Allowed, s.calls)
	}
	// A little of it has passed.
	if s.within[0] > 300*time.Millisecond || s.within[0] < 200*time.Millisecond {
		t.Errorf("the timeout is %v, want the smallest storeTimeout of the policies met, 300ms", s.within[0])
	}
	var titles []string
	for _, limit := range d.Limits {
		titles = append(titles, limit.Title)
	}
	if diff := cmp.Diff([]string{"a/x", "a/second", "b/x"}, titles); diff != "" {
		t.Errorf("titles (-want +got):\n%s", diff)
	}
}

func TestAdmitDoesNotAskForARequestThatMeetsNoLimit(t *testing.T) {
	l, s := scripted(t, doc("a", `{selector: {}, limits: [{name: x, requests: 1, window: 1s, match: [{methods: [PUT]}]}]}`), admitAll)
	if d := l.Admit(t.Context(), get("/")); !d.Allowed || d.Degraded || len(s.calls) != 0 {
		t.Errorf("got %+v after %d calls", d, len(s.calls))
	}
}

func TestAdmitOutlivesTheRequest(t *testing.T) {
	l, _ := scripted(t, doc("a", `{selector: {}, limits: [{name: x, requests: 1, window: 1s}]}`), admitAll)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if d := l.Admit(ctx, get("/")); d.Degraded {
		t.Error("a client that has gone looks like a store that fails")
	}
}

func TestAdmitNamesTheLimitToWaitForLongest(t *testing.T) {
	wait := func(d time.Duration) limiter.Result {
		return limiter.Result{Reason: limiter.LimitExceeded, RetryAfter: d}
	}
	never := limiter.Result{Reason: limiter.CostExceedsLimit}
	for name, tc := range map[string]struct {
		answers map[int]limiter.Result
		limit   string
		reason  Reason
		retry   time.Duration
	}{
		"one":           {map[int]limiter.Result{1: wait(time.Second)}, "second", LimitExceeded, time.Second},
		"the longest":   {map[int]limiter.Result{0: wait(2), 1: wait(3), 2: wait(1)}, "second", LimitExceeded, 3},
		"the first":     {map[int]limiter.Result{0: wait(2), 1: wait(2)}, "x", LimitExceeded, 2},
		"for ever":      {map[int]limiter.Result{0: wait(2), 1: never, 2: wait(9)}, "second", CostExceedsLimit, 0},
		"for ever last": {map[int]limiter.Result{0: wait(2), 2: never}, "z", CostExceedsLimit, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := scripted(t, doc("a", `{selector: {}, limits: [{name: x, requests: 1, window: 1s},
				{name: second, requests: 1, window: 1s}, {name: z, requests: 1, window: 1s}]}`), refusing(tc.answers))
			d := l.Admit(t.Context(), get("/"))
			if d.Allowed || d.Policy != "a" || d.Limit != tc.limit || d.Reason != tc.reason || d.RetryAfter != tc.retry {
				t.Errorf("got %+v", d)
			}
		})
	}
}

func TestShadowCountsAndNeverRefuses(t *testing.T) {
	const limits = `limits: [{name: x, requests: 1, window: 1s, failurePolicy: Deny},
		{name: keyed, requests: 1, window: 1s, key: [{header: {name: X-Key}}], onMissingKey: Deny}]}`
	for name, answer := range map[string]func([]limiter.Hit) ([]limiter.Result, error){
		"when the limit is exceeded": refusing(map[int]limiter.Result{0: {Reason: limiter.LimitExceeded, RetryAfter: 1}}),
		"when the store fails":       unavailable,
	} {
		t.Run(name, func(t *testing.T) {
			l, s := scripted(t, doc("a", `{selector: {}, enforcement: Shadow, `+limits), answer)
			d := l.Admit(t.Context(), get("/"))
			if !d.Allowed || d.Policy != "" || d.RetryAfter != 0 {
				t.Errorf("got %+v", d)
			}
			if len(s.calls) != 1 || !s.calls[0][0].Shadow {
				t.Errorf("the store was asked for %+v, want one hit in shadow", s.calls)
			}
			if x, keyed := d.Limits[0], d.Limits[1]; x.Allowed || !x.Shadow || keyed.Reason != KeyMissing {
				t.Errorf("the limits say %+v, want what would have been refused", d.Limits)
			}
		})
	}
}

func TestRequestWithoutAKeyIsRefusedBeforeTheStoreIsAsked(t *testing.T) {
	l, s := scripted(t, doc("a", `{selector: {}, response: {statusCode: 400}, limits: [{name: other, requests: 1, window: 1s},
		{name: keyed, requests: 1, window: 1s, key: [{header: {name: X-Key}}], onMissingKey: Deny}]}`), admitAll)
	d := l.Admit(t.Context(), get("/"))
	if d.Allowed || d.Reason != KeyMissing || d.Limit != "keyed" || d.Degraded || d.Response.StatusCode != 400 {
		t.Errorf("got %+v", d)
	}
	if len(s.calls) != 0 {
		t.Error("the store was asked")
	}
}

func TestFailurePolicyDecidesWhenTheStoreFails(t *testing.T) {
	const (
		backstop = `{name: own, requests: 1, window: 1h}` // the default
		allow    = `{name: open, requests: 1, window: 1h, failurePolicy: Allow}`
		deny     = `{name: closed, requests: 1, window: 1h, failurePolicy: Deny}`
	)
	type outcome struct {
		Allowed bool
		Reason  Reason
	}
	passes, fails := outcome{true, StoreUnavailable}, outcome{false, StoreUnavailable}
	for name, tc := range map[string]struct {
		limits string
		want   []outcome // of one request after the other
	}{
		"backstop":       {backstop, []outcome{passes, {false, LimitExceeded}}},
		"allow":          {allow, []outcome{passes, passes}},
		"deny":           {deny, []outcome{fails, fails}},
		"deny among all": {allow + ", " + deny, []outcome{fails, fails}},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := scripted(t, doc("a", "{selector: {}, limits: ["+tc.limits+"]}"), unavailable)
			for i, want := range tc.want {
				d := l.Admit(t.Context(), get("/"))
				if (outcome{d.Allowed, d.Reason}) != want || !d.Degraded || (d.RetryAfter > 0) != (want.Reason == LimitExceeded) {
					t.Errorf("request %d: got %+v, want %+v", i+1, d, want)
				}
				for _, limit := range d.Limits {
					if limit.Counted {
						t.Errorf("limit %s has figures that nobody knows", limit.Limit)
					}
				}
			}
		})
	}
}

func TestPreflightsAndProbesAreNotCounted(t *testing.T) {
	preflight := http.Header{"Origin": {"https://a.example"}, "Access-Control-Request-Method": {"PUT"}}
	probe := http.Header{"User-Agent": {"kube-probe/1.34"}}
	proxied := http.Header{"User-Agent": {"kube-probe/1.34"}, "X-Forwarded-For": {"10.0.0.1"}}
	for name, tc := range map[string]struct {
		method, peer string
		header       http.Header
		counted      bool
	}{
		"preflight":                      {"OPTIONS", "192.0.2.1:1", preflight, false},
		"OPTIONS that is none":           {"OPTIONS", "192.0.2.1:1", http.Header{"Origin": {"https://a.example"}}, true},
		"other method with its headers":  {"GET", "192.0.2.1:1", preflight, true},
		"probe":                          {"GET", "10.0.0.1:1", probe, false},
		"probe by IPv4-mapped address":   {"GET", "[::ffff:10.0.0.1]:1", probe, false},
		"probe from elsewhere":           {"GET", "192.0.2.1:1", probe, true},
		"probe from an unknown peer":     {"GET", "", probe, true},
		"probe by way of a proxy":        {"GET", "10.0.0.1:1", proxied, true},
		"probe that changes something":   {"POST", "10.0.0.1:1", probe, true},
		"other request of the same node": {"GET", "10.0.0.1:1", http.Header{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := fromFile(t, doc("a", `{selector: {}, limits: [{name: x, requests: 0, window: 1s}]}`),
				Options{ProbeSources: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}})
			d := l.Admit(t.Context(), Request{Method: tc.method, Path: "/", Header: tc.header, RemoteAddr: tc.peer})
			if d.Allowed == tc.counted {
				t.Errorf("allowed is %v under a limit of 0", d.Allowed)
			}
		})
	}
}

func TestLimitOfZeroRefusesEverything(t *testing.T) {
	for _, algorithm := range []string{"FixedWindow", "SlidingWindow", "SlidingLog", "TokenBucket"} {
		l := fromFile(t, doc("a", `{selector: {}, limits: [{name: x, requests: 0, window: 1s, algorithm: `+algorithm+`}]}`), Options{})
		if d := l.Admit(t.Context(), get("/")); d.Allowed || d.Degraded || d.RetryAfter != 0 {
			t.Errorf("%s: got %+v", algorithm, d)
		}
	}
}

func TestWhatCanNeverBeAdmittedIsRefusedWithoutTheStore(t *testing.T) {
	for name, limit := range map[string]string{
		"a limit of 0":          `{name: x, requests: 0, window: 1s}`,
		"a bucket of 0":         `{name: x, requests: 0, window: 1s, algorithm: TokenBucket}`,
		"a cost over the limit": `{name: x, requests: 5, window: 1s, cost: {requests: 6}}`,
	} {
		l, _ := scripted(t, doc("a", "{selector: {}, limits: ["+limit+"]}"), unavailable)
		if d := l.Admit(t.Context(), get("/")); d.Allowed || d.Reason != CostExceedsLimit || d.RetryAfter != 0 {
			t.Errorf("%s: got %+v", name, d)
		}
	}
}

func TestPeekTakesNothing(t *testing.T) {
	l := fromFile(t, doc("a", perHour("1")), Options{})
	for range 3 {
		if d := l.Peek(t.Context(), get("/")); !d.Allowed || d.Limits[0].Remaining != 1 {
			t.Fatalf("a peek found %+v", d)
		}
	}
	if !l.Admit(t.Context(), get("/")).Allowed {
		t.Error("the peeks were charged")
	}
	if l.Peek(t.Context(), get("/")).Allowed {
		t.Error("a peek admits what Admit would refuse")
	}
}

func TestClientsBehindTrustedProxiesHaveCountersOfTheirOwn(t *testing.T) {
	l := fromFile(t, doc("a", `{selector: {}, limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog, key: [{clientIP: {}}]}]}`),
		Options{TrustedHops: 1})
	from := func(xff string) bool {
		r := get("/")
		r.Header = http.Header{"X-Forwarded-For": {xff}}
		return l.Admit(t.Context(), r).Allowed
	}
	if !from("198.51.100.1") || !from("198.51.100.2") {
		t.Error("two clients share a counter")
	}
	if from("6.6.6.6, 198.51.100.1") {
		t.Error("what a client put into X-Forwarded-For gave it a new counter")
	}
}

func TestObserverIsToldOfExpressionsThatFail(t *testing.T) {
	var failed []string
	l := fromFile(t, doc("a", `{selector: {}, limits: [{name: x, requests: 1, window: 1s, cost: {expression: "int(request.query['n'])"}}]}`),
		Options{Observer: Observer{ExpressionFailed: func(policy, limit string) { failed = append(failed, policy+"/"+limit) }}})
	if d := l.Admit(t.Context(), get("/")); !d.Allowed {
		t.Errorf("got %+v, want a cost of 1", d)
	}
	if diff := cmp.Diff([]string{"a/x"}, failed); diff != "" {
		t.Errorf("failed expressions (-want +got):\n%s", diff)
	}
}

func TestNewNamesWhatIsMissing(t *testing.T) {
	for name, o := range map[string]Options{
		"store":                 {},
		"definitions":           {Store: MemoryStore},
		"namespace":             {Store: "redis://127.0.0.1:1"},
		"scheme":                {Store: "127.0.0.1:6379", Namespace: "shop"},
		"a prefix without tags": {Store: MemoryStore, PolicyFile: "f", Prefix: "a{b}"},
		"a number of hops":      {Store: MemoryStore, PolicyFile: "f", TrustedHops: -1},
		"the file":              {Store: MemoryStore, PolicyFile: "/does/not/exist"},
	} {
		if l, err := New(t.Context(), o); err == nil {
			t.Errorf("New took options without %s", name)
			_ = l.Close(t.Context())
		}
	}
}
