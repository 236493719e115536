package testredis_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// proxied is a server, a proxy before it, and a client of the proxy that tries
// everything once and is connected.
func proxied(t *testing.T) (*testredis.Server, *testredis.Proxy, *redis.Client) {
	t.Helper()
	server := testredis.Start(t)
	proxy := testredis.StartProxy(t, server)
	client := redis.NewClient(&redis.Options{
		Addr: proxy.Addr, ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1, PoolSize: 1,
	})
	t.Cleanup(func() { _ = client.Close() })
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	return server, proxy, client
}

func incr(t *testing.T, client *redis.Client, timeout time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	return client.Incr(ctx, "n").Err()
}

func TestADroppedReplyIsOfACommandThatWasCarriedOut(t *testing.T) {
	server, proxy, client := proxied(t)
	proxy.DropReply()
	if err := incr(t, client, 50*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) && !isTimeout(err) {
		t.Fatalf("error %v, want a timeout", err)
	}
	if proxy.Pending() != 0 {
		t.Error("the fault is still to come")
	}
	if err := incr(t, client, time.Second); err != nil {
		t.Fatal(err)
	}
	if n := server.Client(t).Get(t.Context(), "n").Val(); n != "2" {
		t.Errorf("counted %s", n)
	}
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

func TestAReplyIsCutInTheMiddle(t *testing.T) {
	server, proxy, client := proxied(t)
	proxy.CutReply()
	if err := incr(t, client, time.Second); err == nil || isTimeout(err) {
		t.Fatalf("error %v, want that of a broken connection", err)
	}
	if n := server.Client(t).Get(t.Context(), "n").Val(); n != "1" {
		t.Errorf("counted %s", n)
	}
}

func TestAProxyDelaysAndHolds(t *testing.T) {
	_, proxy, client := proxied(t)
	proxy.Delay(30 * time.Millisecond)
	began := time.Now()
	if err := incr(t, client, time.Second); err != nil || time.Since(began) < 30*time.Millisecond {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	proxy.Delay(0)
	proxy.Hold()
	if err := incr(t, client, 30*time.Millisecond); err == nil {
		t.Error("an answer while the proxy holds")
	}
	proxy.Release()
	if err := incr(t, client, time.Second); err != nil {
		t.Error(err)
	}
}

func TestAProxyCountsConnections(t *testing.T) {
	_, proxy, client := proxied(t)
	if proxy.Open() != 1 || proxy.Accepted() != 1 {
		t.Errorf("%d open of %d", proxy.Open(), proxy.Accepted())
	}
	proxy.CutAll()
	deadline := time.Now().Add(10 * time.Second)
	for proxy.Open() != 0 {
		if time.Now().After(deadline) {
			t.Fatal("the connections are still open")
		}
		time.Sleep(time.Millisecond)
	}
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Error(err) // the pool looks before it uses a connection
	}
	if proxy.Open() != 1 || proxy.Accepted() != 2 {
		t.Errorf("%d open of %d", proxy.Open(), proxy.Accepted())
	}
}
