package sidecar

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/operator"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// An operator asks one sidecar why a client is refused by another, and lets it in
// again.
func TestAnOperatorResetsTheCountOfAllSidecars(t *testing.T) {
	app := serveHTTP(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	redis := testredis.Start(t)
	publish(t, redis, 1, `{"selector":{},"storeTimeout":"10s","limits":[{"name":"x","requests":10,"window":"1h","algorithm":"SlidingLog","key":[{"header":{"name":"X-Api-Key"}}]}]}`)
	doors := make([]*process, 2)
	for i := range doors {
		doors[i] = run(t, []string{"proxy", "admin", "operator API"}, "--store", redis.URL(), "--namespace", "shop", "--pod", "orders-"+string(rune('a'+i)),
			"--pod-labels", "app=orders", "--upstream", app.URL, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--operator-listen", "127.0.0.1:0")
		awaitReady(t, doors[i])
	}
	if got := sendThrough(t, doors[:1], "/", 30); got != 10 {
		t.Errorf("admitted %d of 30 under a limit of 10", got)
	}
	const question = `{"path":"/","headers":{"X-Api-Key":["alice"]}}`
	e := postTo[operator.Explanation](t, doors[1], operator.PathExplain, question)
	if e.Allowed || e.Limit != "x" || e.RetryAfterMs == 0 || len(e.Limits) != 1 || e.Limits[0].Generation != 1 {
		t.Errorf("the explanation is %+v", e)
	}
	change, err := json.Marshal(operator.Change{Policy: e.Policy, Limit: e.Limit, Key: e.Limits[0].Key})
	if err != nil {
		t.Fatal(err)
	}
	if got := postTo[operator.Changed](t, doors[1], operator.PathReset, string(change)); got.Remaining != 10 || got.RedisKey != e.Limits[0].RedisKey {
		t.Errorf("the reset answers %+v", got)
	}
	if got := sendThrough(t, doors[1:], "/", 30); got != 10 {
		t.Errorf("admitted %d of 30 after the reset", got)
	}
	if code := doors[1].stop(t); code != 0 {
		t.Errorf("a sidecar ended with code %d", code)
	}
	if log := doors[1].log.String(); !strings.Contains(log, "Reset a counter") || strings.Contains(log, "alice") {
		t.Errorf("the log says:\n%s", log)
	}
}

func postTo[T any](t *testing.T, p *process, path, body string) (answer T) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", p.urls["operator API"]+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(operator.Header, "1")
	r.Header.Set("Content-Type", "application/json")
	response, err := client(t, false).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("got %d, %v", response.StatusCode, err)
	}
	return answer
}
