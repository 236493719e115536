package main

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

func TestMistakesInTheFlagsAreTold(t *testing.T) {
	for args, want := range map[string]string{
		"--policies=10 --namespaces=3":              "multiples of --namespaces",
		"--policies=10 --namespaces=5 --watchers=7": "multiples of --namespaces",
		"--namespaces=0":                            "--namespaces must be 1..1000",
		"--edits=0":                                 "--edits 5 or more",
		"-o=yaml":                                   "-o must be table or json",
		"quick":                                     `unexpected argument "quick"`,
	} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v", args, err)
		}
	}
	if _, err := parse([]string{"--quick", "--check"}, io.Discard); err != nil {
		t.Error(err)
	}
}

func TestAnEditIsDoneWhenAllWatchersEnforceAllOfIt(t *testing.T) {
	e := &edit{
		generations: map[string]int64{"orders": 2, "login": 5}, began: time.Now(), done: make(chan struct{}),
		watchers: 2, took: map[int]time.Duration{},
	}
	enforces := func(orders, login int64) tallyman.State {
		return tallyman.State{Policies: []tallyman.PolicyState{
			{Name: "basket", Generation: 9}, {Name: "login", Generation: login}, {Name: "orders", Generation: orders},
		}}
	}
	isDone := func() bool {
		select {
		case <-e.done:
			return true
		default:
			return false
		}
	}
	e.loaded(0, enforces(2, 5))
	e.loaded(0, enforces(2, 5)) // again, by another edit
	e.loaded(1, enforces(2, 4))
	if isDone() {
		t.Fatal("it is done, but not enforced by the second watcher")
	}
	e.loaded(1, enforces(3, 5))
	if !isDone() {
		t.Fatal("it is not done, but enforced by both")
	}
	var s samples
	s.add(e)
	if len(s.each) != 2 || len(s.all) != 1 || s.all[0] != max(s.each[0], s.each[1]) {
		t.Errorf("samples: %+v", s)
	}
}

func TestPercentiles(t *testing.T) {
	values := make([]float64, 100)
	for i := range values {
		values[i] = float64(100 - i)
	}
	for p, want := range map[float64]float64{0: 1, 0.5: 50, 0.99: 99, 1: 100} {
		if got := percentile(values, p); got != want {
			t.Errorf("percentile %v is %v, not %v", p, got, want)
		}
	}
}

func TestOnlyRequestsThatWriteAreCounted(t *testing.T) {
	const text = `# TYPE apiserver_request_total counter
apiserver_request_total{code="200",resource="ratelimitpolicies",subresource="status",verb="PATCH"} 3
apiserver_request_total{code="409",resource="ratelimitpolicies",subresource="status",verb="PATCH"} 1
apiserver_request_total{code="201",resource="events",subresource="",verb="POST"} 7
apiserver_request_total{code="200",resource="pods",subresource="",verb="LIST"} 9
apiserver_request_total{code="200",resource="leases",subresource="",verb="PUT"} 5
`
	parser := expfmt.NewTextParser(model.UTF8Validation)
	metrics, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{"PATCH ratelimitpolicies/status": 4, "POST events": 7}
	if diff := cmp.Diff(want, writesIn(metrics["apiserver_request_total"])); diff != "" {
		t.Error(diff)
	}
}

func TestWritesOfRedisAreTheManagers(t *testing.T) {
	from := redisReading{commands: map[string]int64{"set": 1, "hset": 10}}
	to := redisReading{commands: map[string]int64{"set": 2, "publish": 1, "hset": 20, "zadd": 5, "get": 100}}
	if n := writesBesideHeartbeats(from, to); n != 2 {
		t.Errorf("%d writes are not heartbeats", n)
	}
	if n := callsIn("calls=7,usec=12,usec_per_call=1.71"); n != 7 {
		t.Errorf("%d calls", n)
	}
}

func TestAMissedTargetIsShown(t *testing.T) {
	var fs figures
	fs.add("idle: API writes", 0, "")
	fs.add("idle: Redis, CPU", 1.234, "% of a core")
	if !fs.hold() {
		t.Error("a target is missed that holds")
	}
	fs.add("manager: resident at most", 300.5, "MiB")
	if fs.hold() {
		t.Error("all targets hold, but one is missed")
	}
	var table, json strings.Builder
	if err := fs.writeTable(&table, []string{"2 cores"}); err != nil {
		t.Fatal(err)
	}
	const want = `2 cores

| figure                    |            value | target       |
| ------------------------- | ---------------: | ------------ |
| idle: API writes          |                0 | ≤ 0          |
| idle: Redis, CPU          | 1.23 % of a core |              |
| manager: resident at most |          300 MiB | ≤ 256 MISSED |
`
	if diff := cmp.Diff(want, table.String()); diff != "" {
		t.Error(diff)
	}
	if err := fs.writeJSON(&json, []string{"2 cores"}); err != nil || !strings.Contains(json.String(), `"atMost": 256`) {
		t.Errorf("%v: %s", err, json.String())
	}
}
