package tallyman

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

func TestMain(m *testing.M) {
	logging.Disable() // of connections that tests cut on purpose
	goleak.VerifyTestMain(m)
}

// spec reads a spec from JSON.
func spec(t testing.TB, text string) policy.Spec {
	t.Helper()
	s, err := policy.DecodeSpec([]byte(text))
	if err != nil {
		t.Fatalf("decode the test's spec: %v", err)
	}
	return s
}

// definition is a policy of namespace shop that selects every pod.
func definition(t testing.TB, name string, generation int64, text string) policy.Definition {
	t.Helper()
	return policy.Definition{
		Namespace: "shop", Name: name, Generation: generation,
		Selectors: []policy.Selector{{}}, Spec: spec(t, text),
	}
}

// perHour is a spec of one limit that no test outlives: its window begins a new
// hour at most once in the tests' life, and not at all for a TokenBucket.
func perHour(requests string) string {
	return `{"selector":{},"limits":[{"name":"all","requests":` + requests + `,"window":"1h","algorithm":"SlidingLog"}]}`
}

// fromFile is a limiter in memory with the policies of a YAML text.
func fromFile(t testing.TB, text string, o Options) *Limiter {
	t.Helper()
	o.PolicyFile = filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(o.PolicyFile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if o.Store == "" {
		o.Store = MemoryStore
	}
	return open(t, o)
}

// open starts a limiter that ends with the test.
func open(t testing.TB, o Options) *Limiter {
	t.Helper()
	l, err := New(t.Context(), o)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func() {
		if err := l.Close(context.Background()); err != nil {
			t.Logf("close: %v", err) // some tests have killed their store
		}
	})
	return l
}

// eventually waits for a condition that another goroutine brings about.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// get is an ordinary request.
func get(path string) Request {
	return Request{Method: "GET", Host: "shop.example", Path: path, RemoteAddr: "192.0.2.1:1234"}
}
