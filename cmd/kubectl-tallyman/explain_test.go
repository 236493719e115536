package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tallyman-dev/tallyman/internal/operator"
)

const ordersSpec = `
targetRefs: [{kind: Deployment, name: orders}]
limits:
- name: per-client
  requests: 100
  window: 1m
  match: [{methods: [POST], path: {value: /v1/orders}}]
  key: [{header: {name: X-Api-Key}}]
- name: total
  requests: 1000
  window: 1m
`

// ordersLimits are what a sidecar says of ordersSpec.
func ordersLimits() []operator.LimitExplanation {
	l := operator.LimitExplanation{
		Policy: "orders", Generation: 1, Limit: "per-client", Why: "no match applies",
		Algorithm: "SlidingWindow", Distribution: "Exact", FailurePolicy: "Backstop",
		Requests: 100, Capacity: 100, WindowMs: 60_000,
	}
	total := l
	total.Limit, total.Requests, total.Capacity = "total", 1000, 1000
	total.Applies, total.Why, total.Allowed, total.Cost = true, "every request", true, 1
	total.Remaining, total.ResetAfterMs = new(int64(899)), new(int64(48_000))
	total.RedisKey = "tallyman:c:shop:orders:total:w60000000:{*}"
	return []operator.LimitExplanation{l, total}
}

// explaining refuses requests of alice, and says what it has been asked.
func explaining(asked chan<- operator.Request) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request operator.Request
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil || r.URL.Path != operator.PathExplain || r.Method != http.MethodPost {
			problem(w, http.StatusBadRequest, "this is no question")
			return
		}
		asked <- request
		e := operator.Explanation{Allowed: true, Limits: ordersLimits()}
		if request.Headers["X-Api-Key"] != nil {
			e.Allowed, e.Reason, e.Policy, e.Limit, e.RetryAfterMs = false, "LimitExceeded", "orders", "per-client", 11_200
			l := &e.Limits[0]
			l.Applies, l.Why, l.Key, l.Cost = true, "match[0]", request.Headers["X-Api-Key"], 1
			l.Reason, l.RetryAfterMs, l.Remaining, l.ResetAfterMs = "LimitExceeded", 11_200, new(int64(0)), new(int64(60_000))
			l.RedisKey = "tallyman:c:shop:orders:per-client:w60000000:{#2bd806c97f0e00af1a1fc3328fa763a9}"
		}
		_ = json.NewEncoder(w).Encode(e)
	})
}

const explainedText = `Pod orders-a enforces 2 limits of 1 policy.

POLICY  GEN  LIMIT       RULE         REQUESTS             COUNTED BY        COUNTING              IF THE STORE FAILS  SELECTED BY
orders  1    per-client  100 per 1m   POST /v1/orders[/…]  header X-Api-Key  SlidingWindow, Exact  Backstop            Deployment orders
orders  1    total       1000 per 1m  all                  all together      SlidingWindow, Exact  Backstop            Deployment orders
`

const refusedText = `POST /v1/orders from 203.0.113.9 would be refused by per-client of policy orders: 0 of 100 left, again in 12s.

POLICY  LIMIT       RULE         APPLIES  WHY            KEY    COST  LEFT  FULL IN  ANSWER
orders  per-client  100 per 1m   yes      match[0]       alice  1     0     1m       refuses: LimitExceeded, again in 12s
orders  total       1000 per 1m  yes      every request  -      1     899   48s      admits

LIMIT              COUNTER IN REDIS
orders/per-client  tallyman:c:shop:orders:per-client:w60000000:{#2bd806c97f0e00af1a1fc3328fa763a9}
orders/total       tallyman:c:shop:orders:total:w60000000:{*}
`

func TestExplainTellsWhatAPodEnforcesAndWhy(t *testing.T) {
	w := newWorld(t)
	w.deployment("orders")
	w.policy("orders", ordersSpec)
	asked := make(chan operator.Request, 10)
	w.create(w.barePod("orders-0"))
	w.pod("orders-a", explaining(asked))

	for _, of := range []string{"orders-a", "deployment/orders", "deploy/orders"} {
		stdout, stderr, code := w.run("explain", of)
		if diff := cmp.Diff(explainedText, stdout); code != 0 || diff != "" {
			t.Fatalf("%s: exit code %d, %s\n%s", of, code, stderr, diff)
		}
		<-asked
	}
	request := []string{"explain", "deployment/orders", "--request", "POST /v1/orders", "-H", "x-api-key: alice", "--from", "203.0.113.9"}
	stdout, stderr, code := w.run(request...)
	if diff := cmp.Diff(refusedText, stdout); code != exitNo || stderr != "" || diff != "" {
		t.Errorf("exit code %d, %s\n%s", code, stderr, diff)
	}
	want := operator.Request{Method: "POST", Path: "/v1/orders", Headers: map[string][]string{"X-Api-Key": {"alice"}}, ClientIP: "203.0.113.9"}
	if diff := cmp.Diff(want, <-asked); diff != "" {
		t.Errorf("the sidecar was asked (-want +got):\n%s", diff)
	}
	stdout, _, code = w.run(append(request, "-o", "json")...)
	var explained struct {
		Pod      string
		Decision struct{ Limit string }
		Limits   []struct {
			SelectedBy string
			Answer     struct{ Remaining *int64 }
		}
	}
	if err := json.Unmarshal([]byte(stdout), &explained); err != nil || code != exitNo {
		t.Fatalf("exit code %d, %v:\n%s", code, err, stdout)
	}
	if e := explained; e.Pod != "orders-a" || e.Decision.Limit != "per-client" || e.Limits[1].SelectedBy != "Deployment orders" || *e.Limits[1].Answer.Remaining != 899 {
		t.Errorf("%+v", e)
	}
}

func TestExplainSaysWhatIsWrongWithAPod(t *testing.T) {
	w := newWorld(t)
	w.create(w.barePod("bare"))
	w.pod("refusing", answering(nil))
	w.pod("silent", answering(nil))
	w.kubelet.Forward(w.ns, "silent", operatorPortOfTests, "127.0.0.1:1")
	for arg, want := range map[string]string{
		"none":            `get pod none of namespace ` + w.ns + `: pods "none" not found`,
		"deployment/none": `deployments.apps "none" not found`,
		"bare":            "pod bare: it has no sidecar: nothing asks for one: label its namespace tallyman.dev/injection=enabled",
		"refusing":        "ask the sidecar of pod refusing: there is no such path",
		"silent":          "ask the sidecar of pod silent: an error occurred forwarding 12082",
	} {
		stdout, stderr, code := w.run("explain", arg)
		if code != exitFailed || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, want %q in:\n%s%s", arg, code, want, stdout, stderr)
		}
	}
}

func TestExplainAsksASidecarByItsURL(t *testing.T) {
	asked := make(chan operator.Request, 1)
	url := "http://" + serve(t, explaining(asked))
	stdout, stderr, code := run(t, "", "explain", "--sidecar", url, "--request", "/health")
	if code != 0 || !strings.HasPrefix(stdout, "GET /health would be admitted: total has least left, 899 of 1000.\n") {
		t.Errorf("exit code %d, output:\n%s%s", code, stdout, stderr)
	}
	if _, stderr, code := run(t, "", "explain", "--sidecar", "http://127.0.0.1:1"); code != exitFailed || !strings.Contains(stderr, "connection refused") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

func TestWhatIsNotValidOfExplainIsSaidWithExitCode2(t *testing.T) {
	for args, want := range map[string]string{
		"":                                      "write the name of a pod",
		"orders --sidecar http://127.0.0.1:1":   "write no pod",
		"job/orders":                            "deployment/, statefulset/",
		"deployment/":                           "has no name",
		"orders --from 10.0.0.1":                "write one, such as --request",
		"orders --request POST,/a":              "--request is",
		"orders --request /a -H X-Api-Key":      "--header is",
		"orders --request /a --from localhost":  "--from is",
		"orders --request /\xff":                "only text can be named",
		"orders --request /a -H X-Api-Key:\xff": "only text can be named",
		"--sidecar 127.0.0.1:12082":             "is no URL",
		"--sidecar https://127.0.0.1:12082":     "is no URL",
		"orders -o xml":                         "write table, json or yaml",
	} {
		stdout, stderr, code := run(t, "", append([]string{"explain"}, strings.Fields(args)...)...)
		if code != exitInvalid || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%q: exit code %d, want %q in:\n%s%s", args, code, want, stdout, stderr)
		}
	}
}
