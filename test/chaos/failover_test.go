package chaos

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/internal/testredis"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// R15: the pool has connections to a master that has become a replica.
func TestSentinelFailsOver(t *testing.T) {
	long(t)
	noLeaks(t)
	set := testredis.StartSentinel(t)
	s := newScene(t, open(t, sentinelURL(set), patience))
	s.load()

	demoted := span{from: s.now()}
	master := set.Failover(t)
	demoted.to = s.now()
	s.recovers(demoted.to)
	s.decisions(50 * callers)

	killed := span{from: s.now()}
	master.Kill()
	s.degrades()
	set.AwaitFailover(t, master)
	killed.to = s.now()
	s.recovers(killed.to)
	s.decisions(50 * callers)
	s.check(demoted, killed)
}

func sentinelURL(set *testredis.Sentinel) string {
	return strings.Replace(set.URL(), "redis://", "redis+sentinel://", 1)
}

func clusterURL(c *testredis.Cluster) string {
	return strings.Replace(c.URL(), "redis://", "redis+cluster://", 1)
}

// Slots move with their counts, to and fro, and requests go on.
func TestAClusterIsResharded(t *testing.T) {
	long(t)
	noLeaks(t)
	cluster := testredis.StartCluster(t, 3)
	s := newScene(t, open(t, clusterURL(cluster), patience))
	s.load()
	moves := 0
	for _, to := range cluster.Servers {
		for _, counter := range counters(t, cluster) {
			if cluster.Owner(t, counter) != to {
				cluster.Move(t, counter, to)
				s.decisions(10 * callers)
				moves++
			}
		}
		s.recovers(s.now())
	}
	if moves < len(keys) {
		t.Errorf("only %d slots were moved", moves)
	}
	s.decisions(50 * callers)
	s.check()
}

// counters are all keys of a cluster.
func counters(t *testing.T, cluster *testredis.Cluster) []string {
	t.Helper()
	var found []string
	for _, server := range cluster.Servers {
		names, err := server.Client(t).Keys(t.Context(), "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, names...)
	}
	return found
}

func TestAClusterLosesAMaster(t *testing.T) {
	long(t)
	noLeaks(t)
	cluster := testredis.StartReplicatedCluster(t, 3)
	s := newScene(t, open(t, clusterURL(cluster), patience))
	s.load()
	master := cluster.Owner(t, counters(t, cluster)[0])

	lost := span{from: s.now()}
	master.Kill()
	s.degrades()
	cluster.AwaitFailover(t, master)
	lost.to = s.now()
	for _, key := range keys {
		s.recoversFor(key, lost.to)
	}
	s.decisions(50 * callers)
	s.check(lost)
}

// A master that hangs is not noticed by an error to connect: only a look at the
// cluster tells that it has a successor.
func TestAClustersMasterHangs(t *testing.T) {
	long(t)
	noLeaks(t)
	cluster := testredis.StartReplicatedCluster(t, 3)
	s := newScene(t, open(t, clusterURL(cluster), patience))
	s.load()
	master := cluster.Owner(t, counters(t, cluster)[0])

	lost := span{from: s.now()}
	master.Pause()
	s.degrades()
	cluster.AwaitFailover(t, master)
	lost.to = s.now()
	for _, key := range keys {
		s.recoversFor(key, lost.to)
	}
	s.decisions(50 * callers)
	master.Resume()
	s.decisions(50 * callers)
	s.check(lost)
}

// The replica that is promoted has a clock that is five seconds off, either way.
// What is used stays used: no window of 30 days is over five seconds early, and
// none of the counts begins anew.
func TestTheSuccessorHasAnotherClock(t *testing.T) {
	long(t)
	for name, off := range map[string]time.Duration{"ahead": 5 * time.Second, "behind": -5 * time.Second} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			set := testredis.StartSentinel(t)
			set.Servers[1].Skew(t, off)
			set.Servers[2].Skew(t, off)
			set.AwaitReplicas(t)
			s := newScene(t, start(t, tallyman.Options{Store: sentinelURL(set), PolicyFile: policyFile(t, monthly)}))
			for range monthlyLimit / 2 {
				s.ask("a")
			}
			if n, err := set.Master(t).Client(t).Wait(t.Context(), 2, toRecover).Result(); n != 2 || err != nil {
				t.Fatalf("%d replicas have the counts, %v", n, err)
			}
			set.Failover(t)

			s.insist("a")
			for range monthlyLimit {
				s.ask("a")
			}
			for _, limit := range s.ask("a").Limits {
				if limit.Allowed || limit.RetryAfter > 31*24*time.Hour {
					t.Errorf("limit %s: %d of %d remain, retry after %v", limit.Limit, limit.Remaining, limit.Requests, limit.RetryAfter)
				}
			}
			p := promise{requests: monthlyLimit, window: 24 * time.Hour}
			if found := p.broken(s.trace); len(found) > 0 {
				t.Errorf("%q", found)
			}
			least, most := p.counted(s.trace, "a")
			if least > monthlyLimit || most < monthlyLimit {
				t.Errorf("%d were admitted for certain and %d at most, want %d", least, most, monthlyLimit)
			}
			s.report()
		})
	}
}

const monthlyLimit = 40

// monthly has a limit of each algorithm, which all end at the same request.
var monthly = fmt.Sprintf(`{
	"selector": {}, "storeTimeout": "500ms",
	"limits": [
		{"name": "log", "requests": %[1]d, "window": "720h", "algorithm": "SlidingLog"},
		{"name": "sliding", "requests": %[1]d, "window": "720h", "algorithm": "SlidingWindow"},
		{"name": "fixed", "requests": %[1]d, "window": "720h", "algorithm": "FixedWindow"},
		{"name": "bucket", "requests": %[1]d, "window": "720h", "algorithm": "TokenBucket"}
	]}`, monthlyLimit)
