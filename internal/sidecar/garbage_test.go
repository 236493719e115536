package sidecar

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/store"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// scrape reads a metric without labels from a sidecar's /metrics.
func scrape(t *testing.T, p *process, name string) float64 {
	t.Helper()
	_, body := do(t, client(t, false), newRequest(t, "GET", p.urls["admin"]+"/metrics", nil))
	for line := range strings.Lines(body) {
		if text, found := strings.CutPrefix(line, name+" "); found {
			v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}

// garbleDefinition replaces the definition by what is none, and announces it.
func garbleDefinition(t *testing.T, c *redis.Client) {
	t.Helper()
	last, err := store.ParseRevision(c.Get(t.Context(), "tallyman:revision:{shop}").Val())
	if err != nil {
		t.Fatal(err)
	}
	last.Number++
	if _, err := c.TxPipelined(t.Context(), func(pipe redis.Pipeliner) error {
		pipe.HSet(t.Context(), "tallyman:policies:{shop}", "orders", `{"name":`)
		pipe.Set(t.Context(), "tallyman:revision:{shop}", last.String(), 0)
		pipe.Publish(t.Context(), "tallyman:events:shop", "revision "+last.String())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func garbleCounter(t *testing.T, c *redis.Client) {
	t.Helper()
	keys, err := c.Keys(t.Context(), "tallyman:c:shop:orders:*").Result()
	if err != nil || len(keys) != 1 {
		t.Fatalf("counters are %v, %v", keys, err)
	}
	if err := c.Set(t.Context(), keys[0], "garbage", 0).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestMetricsTellOfGarbageInRedisWhileLimitsAreEnforced(t *testing.T) {
	const rejections, ignored, corrupt = "tallyman_definition_errors_total", "tallyman_events_ignored_total", "tallyman_counters_corrupt_total"
	app := serveHTTP(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server := testredis.Start(t)
	publish(t, server, 1, `{"selector":{},"storeTimeout":"10s","limits":[{"name":"x","requests":2,"window":"1h","algorithm":"SlidingLog"}]}`)
	p := run(t, []string{"proxy", "admin"}, "--store", server.URL(), "--namespace", "shop", "--pod", "orders-0", "--pod-labels", "app=orders",
		"--upstream", app.URL, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
	awaitReady(t, p)
	expect := func(status int) {
		t.Helper()
		if resp, _ := do(t, client(t, false), newRequest(t, "GET", p.urls["proxy"], nil)); resp.StatusCode != status {
			t.Errorf("a request got %d, want %d", resp.StatusCode, status)
		}
	}
	expect(200)
	for _, name := range []string{rejections, ignored, corrupt} {
		if got := scrape(t, p, name); got != 0 {
			t.Errorf("%s is %v before there is garbage", name, got)
		}
	}

	c := server.Client(t)
	garbleDefinition(t, c)
	eventually(t, "the definition to be rejected", func() bool { return scrape(t, p, rejections) > 0 })
	eventually(t, "a message to be ignored", func() bool { // only what is sent after it has subscribed arrives
		c.Publish(t.Context(), "tallyman:events:shop", "\x00{garbage")
		return scrape(t, p, ignored) > 0
	})
	garbleCounter(t, c)
	for _, status := range []int{200, 200, 429} { // of a new counter, by the last good definition
		expect(status)
	}
	for _, name := range []string{rejections, corrupt} {
		if got := scrape(t, p, name); got != 1 {
			t.Errorf("%s is %v, want 1", name, got)
		}
	}
	if got := scrape(t, p, "tallyman_definitions_rejected"); got != 1 {
		t.Errorf("%v definitions are rejected now, want 1", got)
	}
}
