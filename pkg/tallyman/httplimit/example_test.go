package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
	"github.com/tallyman-dev/tallyman/pkg/tallyman/httplimit"
)

const policies = `
apiVersion: tallyman.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: orders}
spec:
  selector: {}
  limits:
  - name: per-key
    requests: 2
    window: 1h
    algorithm: SlidingLog
    key:
    - header: {name: X-Api-Key}
`

// newLimiter enforces the policies within this process. With several servers, Store is
// the URL of their Redis.
func newLimiter() (*tallyman.Limiter, error) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "policies.yaml")
	if err := os.WriteFile(file, []byte(policies), 0o600); err != nil {
		return nil, err
	}
	return tallyman.New(context.Background(), tallyman.Options{Store: tallyman.MemoryStore, PolicyFile: file})
}

func ExampleMiddleware() {
	limiter, err := newLimiter()
	if err != nil {
		log.Fatal(err)
	}
	defer limiter.Close(context.Background())

	app := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "order accepted") })
	handler := httplimit.Middleware(limiter)(app)

	for range 3 {
		r := httptest.NewRequest("POST", "/v1/orders", nil)
		r.Header.Set("X-Api-Key", "alice")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("RateLimit"))
	}
	// Output:
	// 200 "per-key";r=1;t=3600
	// 200 "per-key";r=0;t=3600
	// 429 "per-key";r=0;t=3600
}

// A client of an API that admits two requests an hour for each key.
func ExampleTransport() {
	limiter, err := newLimiter()
	if err != nil {
		log.Fatal(err)
	}
	defer limiter.Close(context.Background())
	api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer api.Close()

	client := &http.Client{Transport: &httplimit.Transport{Admitter: limiter, Base: api.Client().Transport}}
	for range 3 {
		r, err := http.NewRequest("GET", api.URL, nil)
		if err != nil {
			log.Fatal(err)
		}
		r.Header.Set("X-Api-Key", "alice")
		resp, err := client.Do(r)
		if refused, ok := errors.AsType[*httplimit.RefusedError](err); ok {
			fmt.Println("limit", refused.Decision.Limit, "admits the next in", refused.Decision.RetryAfter.Round(time.Minute))
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		resp.Body.Close()
		fmt.Println(resp.StatusCode)
	}
	// Output:
	// 200
	// 200
	// limit per-key admits the next in 1h0m0s
}
