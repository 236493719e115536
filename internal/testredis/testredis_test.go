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

func TestClusterReplicaTakesOver(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartReplicatedCluster(t, 3)
	client := cluster.Client(t)
	if err := client.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	master := cluster.Owner(t, "k")
	if n, err := master.Client(t).Wait(t.Context(), 1, time.Second).Result(); n != 1 || err != nil {
		t.Fatalf("%d replicas have the key, %v", n, err)
	}

	master.Kill()
	successor := cluster.AwaitFailover(t, master)
	if cluster.Owner(t, "k") != successor {
		t.Error("the replica does not own the master's slots")
	}
	if v, err := successor.Client(t).Get(t.Context(), "k").Result(); v != "v" || err != nil {
		t.Errorf("the key is %q, %v", v, err)
	}
}

func TestClusterMovesASlotWithItsKeys(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 2)
	client := cluster.Client(t)
	for i := range 250 {
		if err := client.Set(t.Context(), fmt.Sprintf("{tag}%d", i), i, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	from := cluster.Owner(t, "{tag}")
	to := cluster.Servers[0]
	if to == from {
		to = cluster.Servers[1]
	}
	cluster.Move(t, "{tag}", to)
	if n := to.Client(t).DBSize(t.Context()).Val(); n != 250 {
		t.Errorf("the new master has %d keys", n)
	}
	if n := from.Client(t).DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("the old master has %d keys", n)
	}
	if v, err := client.Get(t.Context(), "{tag}249").Result(); v != "249" || err != nil {
		t.Errorf("the last key is %q, %v", v, err)
	}
}

func TestSentinelPromotesAReplica(t *testing.T) {
	t.Parallel()
	set := testredis.StartSentinel(t, "--requirepass", "s3cret", "--masterauth", "s3cret")
	options, err := redis.ParseFailoverURL(set.URL())
	if err != nil || len(options.SentinelAddrs) != 3 {
		t.Fatalf("URL %s: %v, %v", set.URL(), options, err)
	}
	first := set.Master(t)
	second := set.Failover(t)
	if second == first || set.Master(t) != second {
		t.Fatal("the failover on request changed nothing")
	}
	testredis.AwaitRole(t, first, "slave")

	second.Kill()
	third := set.AwaitFailover(t, second)
	if third == second {
		t.Fatal("a dead server is the master")
	}
	if err := third.Client(t).Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Error(err)
	}
}

func TestTLSServerWantsACertificate(t *testing.T) {
	server := testredis.Start(t, testredis.NewCertificates(t).Args()...)
	if err := server.Client(t).Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	plain := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer plain.Close()
	if err := plain.Ping(t.Context()).Err(); err == nil {
		t.Error("the server speaks without TLS")
	}
}

func TestSkewedServerHasAnotherClock(t *testing.T) {
	server := testredis.Start(t)
	server.Skew(t, -5*time.Second)
	now, err := server.Client(t).Time(t.Context()).Result()
	if off := time.Until(now); err != nil || off > -4*time.Second || off < -6*time.Second {
		t.Errorf("the clock is off by %v, %v", off, err)
	}
}
