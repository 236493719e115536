package envoy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tallyman-dev/tallyman/internal/testredis"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

func TestMain(m *testing.M) {
	logging.Disable() // of connections that tests cut on purpose
	goleak.VerifyTestMain(m)
}

// limiterOn is a limiter with these specs, the policies a, b and so on, that counts
// in a store.
func limiterOn(t testing.TB, o tallyman.Options, specs ...string) *tallyman.Limiter {
	t.Helper()
	var file strings.Builder
	for i, spec := range specs {
		fmt.Fprintf(&file, "---\napiVersion: tallyman.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: %c}\nspec: {selector: {}, %s}\n", 'a'+i, spec)
	}
	l := limiterOf(t, o, file.String())
	t.Cleanup(func() { _ = l.Close(context.Background()) }) // some tests have no store to take leave of
	return l
}

// limiterOf is a limiter with the policies of a file, which the caller closes.
func limiterOf(t testing.TB, o tallyman.Options, file string) *tallyman.Limiter {
	t.Helper()
	o.PolicyFile = filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(o.PolicyFile, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	if o.Store == "" {
		o.Store = tallyman.MemoryStore
	}
	l, err := tallyman.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// dial serves a limiter on a port of its own, and returns a connection to it.
func dial(t testing.TB, l *tallyman.Limiter) *grpc.ClientConn {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := NewServer(context.Background(), l, l)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		if err := errors.Join(server.Close(), <-served); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// onEveryStore runs a test on a count in memory and on one in a redis-server.
func onEveryStore(t *testing.T, test func(t *testing.T, o tallyman.Options)) {
	t.Run("memory", func(t *testing.T) { test(t, tallyman.Options{Store: tallyman.MemoryStore}) })
	t.Run("redis", func(t *testing.T) { test(t, tallyman.Options{Store: testredis.Start(t).URL()}) })
}
