package sidecar

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

func TestMain(m *testing.M) {
	logging.Disable()         // of connections that tests cut on purpose
	log.SetOutput(io.Discard) // http.Transport's, of apps that send what nobody asked for
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		removeBinary()
		os.Exit(code)
	}))
}

var silent = slog.New(slog.DiscardHandler)

// lines is a log that tests can read while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}

// policyFile writes the specs as the policies a, b and so on.
func policyFile(t testing.TB, specs ...string) string {
	t.Helper()
	var file strings.Builder
	for i, spec := range specs {
		fmt.Fprintf(&file, "---\napiVersion: tallyman.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: %c}\nspec: {selector: {}, %s}\n", 'a'+i, spec)
	}
	path := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// inMemory is a limiter with these specs and metrics.
func inMemory(t testing.TB, specs ...string) (*tallyman.Limiter, *metrics) {
	t.Helper()
	m := newMetrics()
	l, err := tallyman.New(t.Context(), tallyman.Options{
		Store: tallyman.MemoryStore, PolicyFile: policyFile(t, specs...), Observer: m.observer(nil),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	m.watch(l, false)
	return l, m
}

// doorsTo are the ways in to a limiter, whose decisions nobody looks at.
func doorsTo(l *tallyman.Limiter) doors { return newDoors(l, newMetrics(), nil, silent) }

// serveHTTP serves a handler as the sidecar serves, HTTP/2 without TLS included.
func serveHTTP(t testing.TB, handler http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config = newServer(handler, silent)
	server.Start()
	t.Cleanup(server.Close)
	return server
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
