package testredis_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// Shared's server still runs at the end; it must not look like a leak.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServerForgetsOnRestart(t *testing.T) {
	server := testredis.Start(t)
	client := server.Client(t)
	if err := client.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}

	server.Kill()
	if err := client.Ping(t.Context()).Err(); err == nil {
		t.Fatal("a killed server answers")
	}

	server.Restart(t)
	if n, err := client.DBSize(t.Context()).Result(); n != 0 || err != nil {
		t.Fatalf("after a restart: %d keys, %v; want none", n, err)
	}
}

func TestPausedServerAnswersLate(t *testing.T) {
	server := testredis.Start(t)
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr, ContextTimeoutEnabled: true, MaxRetries: -1,
	})
	t.Cleanup(func() { _ = client.Close() })
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}

	server.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := client.Ping(ctx).Err(); err == nil {
		t.Fatal("a paused server answers")
	}
	server.Resume()
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestServerTakesArguments(t *testing.T) {
	server := testredis.Start(t, "--requirepass", "s3cret", "--maxmemory", "10mb")
	config, err := server.Client(t).ConfigGet(t.Context(), "maxmemory").Result()
	if err != nil || config["maxmemory"] != "10485760" {
		t.Fatalf("maxmemory is %q, %v", config["maxmemory"], err)
	}
}

func TestSharedIsOneServer(t *testing.T) {
	first := testredis.Shared(t)
	t.Run("outlives a test", func(t *testing.T) {
		if testredis.Shared(t) != first {
			t.Fatal("a second server")
		}
	})
	if one, other := testredis.Prefix(t), testredis.Prefix(t); one == other {
		t.Fatalf("the prefix %q came twice", one)
	}
	if err := first.Client(t).Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestClusterTakesWritesOnEverySlot(t *testing.T) {
	cluster := testredis.StartCluster(t, 3)
	options, err := redis.ParseClusterURL(cluster.URL())
	if err != nil || len(options.Addrs) != 3 {
		t.Fatalf("URL %s: %v, %v", cluster.URL(), options, err)
	}
	client := cluster.Client(t)
	owners := map[string]bool{}
	for i := range 100 {
		key := fmt.Sprint("k", i)
		if err := client.Set(t.Context(), key, i, 0).Err(); err != nil {
			t.Fatal(err)
		}
		owners[cluster.Owner(t, key).Addr] = true
	}
	if len(owners) != 3 {
		t.Fatalf("100 keys fell on %d nodes", len(owners))
	}
}
