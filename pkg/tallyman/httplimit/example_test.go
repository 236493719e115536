package httplimit_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

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

func ExampleMiddleware() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "policies.yaml")
	if err := os.WriteFile(file, []byte(policies), 0o600); err != nil {
		log.Fatal(err)
	}

	// With several servers, Store is the URL of their Redis.
	limiter, err := tallyman.New(context.Background(), tallyman.Options{Store: tallyman.MemoryStore, PolicyFile: file})
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
