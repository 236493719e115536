package sidecar

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tallyman-dev/tallyman/internal/operator"
	"github.com/tallyman-dev/tallyman/internal/testredis"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// operate asks the operator API as the plugin does. GET has no body.
func operate(api http.Handler, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", path, nil)
	if body != "" {
		r = httptest.NewRequest("POST", path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
	}
	r.Host = "localhost:4711"
	r.Header.Set(operator.Header, "1")
	w := httptest.NewRecorder()
	api.ServeHTTP(w, r)
	return w
}

// answered reads an answer of the operator API.
func answered[T any](t *testing.T, w *httptest.ResponseRecorder) (answer T) {
	t.Helper()
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != http.StatusOK {
		t.Fatalf("got %d %s", w.Code, w.Body)
	}
	return answer
}

func TestExplainAnswersWithWhatWouldBecomeOfARequest(t *testing.T) {
	l, m := inMemory(t, perKey, `enforcement: Shadow, limits: [{name: z, requests: 0, window: 1m, match: [{methods: [PUT]}]}]`)
	api := newOperatorAPI(l, silent)
	question, err := json.Marshal(operator.Request{
		Path: "/v1/orders?q=1", Headers: map[string][]string{"x-api-key": {"alice"}}, ClientIP: "192.0.2.1",
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got := answered[operator.Explanation](t, operate(api, operator.PathExplain, string(question)))
		want := operator.Explanation{Allowed: true, Limits: []operator.LimitExplanation{
			{
				Policy: "a", Limit: "x", Applies: true, Why: "match[0]", Key: []string{"alice", "1", "192.0.2.1"}, Cost: 1,
				RedisKey:  got.Limits[0].RedisKey,
				Algorithm: "SlidingLog", Distribution: "Exact", FailurePolicy: "Backstop",
				Requests: 1, Capacity: 1, WindowMs: 3_600_000, Allowed: true, Remaining: new(int64(1)), ResetAfterMs: new(int64(0)),
			}, {
				Policy: "b", Limit: "z", Shadow: true, Why: "no match applies",
				Algorithm: "SlidingWindow", Distribution: "Exact", FailurePolicy: "Backstop", WindowMs: 60_000,
			},
		}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("explanation (-want +got):\n%s", diff)
		}
		if !strings.HasPrefix(got.Limits[0].RedisKey, "tallyman:c:default:a:x:") || strings.Contains(got.Limits[0].RedisKey, "alice") {
			t.Errorf("the counter is %q", got.Limits[0].RedisKey)
		}
	}
	if got := value(t, m, "tallyman_requests_total"); got != 0 {
		t.Errorf("%v requests were decided, want none", got)
	}
}

func TestOperatorAPIRefusesWhatItDoesNotUnderstand(t *testing.T) {
	l, _ := inMemory(t, roomy)
	api := newOperatorAPI(l, silent)
	for name, c := range map[string]struct {
		path, body string
		code       int
		says       string
	}{
		"a misspelt field": {operator.PathExplain, `{"pth":"/"}`, 400, `\"pth\"`},
		"no object":        {operator.PathExplain, `null`, 400, "null"},
		"an odd address":   {operator.PathExplain, `{"clientIP":"localhost"}`, 400, "clientIP"},
		"too much":         {operator.PathExplain, `{"path":"/` + strings.Repeat("a", maxCheckBody) + `"}`, 413, "65536"},
		"a null change":    {operator.PathReset, `null`, 400, "null"},
		"a misspelt key":   {operator.PathReset, `{"policy":"a","limit":"x","keys":["a"]}`, 400, `\"keys\"`},
		"no policy":        {operator.PathReset, `{}`, 404, "in force are: a"},
		"no such limit":    {operator.PathRefund, `{"policy":"a","limit":"y","units":1}`, 404, "it has: x"},
		"too many values":  {operator.PathReset, `{"policy":"a","limit":"x","key":["a"]}`, 404, "one counter for all"},
		"units to reset":   {operator.PathReset, `{"policy":"a","limit":"x","units":1}`, 400, "units must be left out"},
		"nothing back":     {operator.PathRefund, `{"policy":"a","limit":"x"}`, 400, "units must be 1"},
		"less than that":   {operator.PathRefund, `{"policy":"a","limit":"x","units":-1}`, 400, "units must be 1"},
		"a huge change":    {operator.PathReset, `{"policy":"` + strings.Repeat("a", maxCheckBody) + `"}`, 413, "65536"},
		"another path":     {"/v1/check", `{}`, 404, "no POST /v1/check"},
		"another method":   {operator.PathExplain, "", 404, "no GET /v1/explain"},
	} {
		w := operate(api, c.path, c.body)
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.says) || w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: got %d %s, want %d with %q", name, w.Code, w.Body, c.code, c.says)
		}
	}
	r := httptest.NewRequest("POST", operator.PathExplain, strings.NewReader("{}"))
	w := httptest.NewRecorder()
	api.ServeHTTP(w, r)
	if w.Code != http.StatusForbidden {
		t.Errorf("a request without the header got %d", w.Code)
	}
}

func TestTopTellsValuesOnlyWhenTheyAreAskedFor(t *testing.T) {
	l, _ := inMemory(t, `limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog, key: [{clientIP: {}}, {header: {name: X-Api-Key}}]}]`)
	api := newOperatorAPI(l, silent)
	if first := answered[operator.Top](t, operate(api, operator.PathTop, "")); first.SinceMs > 1000 || len(first.Limits) != 1 {
		t.Errorf("the first answer is %+v", first)
	}
	r := tallyman.Request{Method: "GET", Path: "/", RemoteAddr: "192.0.2.1", Header: http.Header{"X-Api-Key": {"sesame"}}}
	l.Admit(t.Context(), r)
	l.Admit(t.Context(), r)
	for query, key := range map[string]string{
		"": "192.0.2.1, #d0c04f4b1951e4aeaaec8223ed2039e5", "?reveal=false": "192.0.2.1, #d0c04f4b1951e4aeaaec8223ed2039e5",
		"?reveal=true": "192.0.2.1, sesame",
	} {
		got := answered[operator.Top](t, operate(api, operator.PathTop+query, ""))
		want := []operator.TopLimit{{
			Policy: "a", Limit: "x", Admitted: 1, Refused: 1, Keys: []operator.TopKey{{Key: key, Admitted: 1, Refused: 1}},
		}}
		if diff := cmp.Diff(want, got.Limits); diff != "" {
			t.Errorf("%s: limits (-want +got):\n%s", query, diff)
		}
	}
}

func TestCountersAreChangedAndTheLogHoldsNoValue(t *testing.T) {
	l, _ := inMemory(t, `limits: [{name: x, requests: 3, window: 1h, algorithm: SlidingLog, key: [{clientIP: {}}, {header: {name: X-Api-Key}}]}]`)
	var log lines
	api := newOperatorAPI(l, slog.New(slog.NewTextHandler(&log, nil)))
	r := tallyman.Request{Method: "GET", Path: "/", RemoteAddr: "192.0.2.1", Header: http.Header{"X-Api-Key": {"sesame"}}}
	for range 3 {
		l.Admit(t.Context(), r)
	}
	for _, c := range []struct {
		path, body string
		want       operator.Changed
	}{
		{operator.PathRefund, `{"policy":"a","limit":"x","key":["192.0.2.1","sesame"],"units":2}`, operator.Changed{Units: 2, Remaining: 2}},
		{operator.PathReset, `{"policy":"a","limit":"x","key":["192.0.2.1","sesame"]}`, operator.Changed{Remaining: 3}},
	} {
		got := answered[operator.Changed](t, operate(api, c.path, c.body))
		c.want.RedisKey = l.Explain(t.Context(), r).Limits[0].RedisKey
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.path, diff)
		}
	}
	operate(api, operator.PathReset, `{"policy":"a","limit":"x","key":["sesame"]}`)
	if log.count("level=INFO") != 2 || log.count("policy=a limit=x counter=") != 2 || log.count("units=2") != 1 || log.count("units=") != 1 {
		t.Errorf("the log says:\n%s", log.text.String())
	}
	if log.count("sesame") != 0 || log.count("192.0.2.1") != 0 {
		t.Errorf("the log tells of clients:\n%s", log.text.String())
	}
}

func TestAChangeWithoutTheStoreIsTold(t *testing.T) {
	server := testredis.Start(t)
	l, err := tallyman.New(t.Context(), tallyman.Options{
		Store: server.URL(), PolicyFile: policyFile(t, `limits: [{name: x, requests: 3, window: 1h}]`),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(context.Background())
	server.Kill()
	w := operate(newOperatorAPI(l, silent), operator.PathReset, `{"policy":"a","limit":"x"}`)
	if w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), server.Addr) {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}
