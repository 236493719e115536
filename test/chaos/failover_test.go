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

// A connection to a master that hangs has no error: who waits for one waits long.
func TestSentinelsMasterHangs(t *testing.T) {
	long(t)
	noLeaks(t)
	set := testredis.StartSentinel(t)
	s := newScene(t, open(t, sentinelURL(set), patience))
	s.load()

	lost := span{from: s.now()}
	master := set.Master(t)
	master.Pause()
	s.degrades()
	set.AwaitFailover(t, master)
	s.recovers(s.now())
	s.decisions(50 * callers)
	master.Resume() // and it takes itself for the master, for a moment
	testredis.AwaitRole(t, master, "slave")
	lost.to = s.now()
	s.recovers(lost.to)
	s.decisions(50 * callers)
	s.check(lost)
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
	s, _, lost := loseMaster(t, (*testredis.Server).Kill)
	s.decisions(50 * callers)
	s.check(lost)
}

// A master that hangs is not noticed by an error to connect: only a look at the
// cluster tells that it has a successor.
func TestAClustersMasterHangs(t *testing.T) {
	s, master, lost := loseMaster(t, (*testredis.Server).Pause)
	s.decisions(50 * callers)
	master.Resume()
	s.decisions(50 * callers)
	s.check(lost)
}

// loseMaster has a master of a cluster fail under load, and waits until all keys
// are decided by the store again.
func loseMaster(t *testing.T, fail func(*testredis.Server)) (s *scene, master *testredis.Server, lost span) {
	t.Helper()
	long(t)
	noLeaks(t)
	cluster := testredis.StartReplicatedCluster(t, 3)
	s = newScene(t, open(t, clusterURL(cluster), patience))
	s.load()
	master = cluster.Owner(t, counters(t, cluster)[0])

	lost.from = s.now()
	fail(master)
	s.degrades()
	cluster.AwaitFailover(t, master)
	lost.to = s.now()
	for _, key := range keys {
		s.recoversFor(key, lost.to)
	}
	return s, master, lost
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
			s := newScene(t, start(t, tallyman.Options{Store: sentinelURL(set), PolicyFile: policyFile(t, monthly())}))
			for _, algorithm := range algorithms {
				for range monthlyLimit / 2 {
					s.ask(algorithm)
				}
			}
			if n, err := set.Master(t).Client(t).Wait(t.Context(), 2, toRecover).Result(); n != 2 || err != nil {
				t.Fatalf("%d replicas have the counts, %v", n, err)
			}
			successor := set.Failover(t)
			now, err := successor.Client(t).Time(t.Context()).Result()
			if measured := time.Until(now); err != nil || (measured-off).Abs() > time.Second {
				t.Fatalf("the successor's clock is %v off, %v; want %v", measured, err, off)
			}

			p := promise{requests: monthlyLimit, window: 24 * time.Hour}
			for _, algorithm := range algorithms {
				s.insist(algorithm)
				for range monthlyLimit {
					s.ask(algorithm)
				}
				if d := s.ask(algorithm); d.Allowed || d.RetryAfter > 31*24*time.Hour {
					t.Errorf("%s decides, when all is used: %+v", algorithm, d)
				}
				least, most := p.counted(s.trace, algorithm)
				if least > monthlyLimit || most < monthlyLimit {
					t.Errorf("%s admitted %d for certain and %d at most, want %d", algorithm, least, most, monthlyLimit)
				}
			}
			if found := p.broken(s.trace); len(found) > 0 {
				t.Errorf("%q", found)
			}
			s.report()
		})
	}
}

const monthlyLimit = 40

var algorithms = []string{"SlidingLog", "SlidingWindow", "FixedWindow", "TokenBucket"}

// monthly has a limit of each algorithm, for the requests whose key is its name.
func monthly() string {
	var limits []string
	for _, algorithm := range algorithms {
		limits = append(limits, fmt.Sprintf(`{"name": "%s", "requests": %d, "window": "720h", "algorithm": "%s",
			"match": [{"headers": [{"name": "X-Key", "value": "%s"}]}]}`,
			strings.ToLower(algorithm), monthlyLimit, algorithm, algorithm))
	}
	return fmt.Sprintf(`{"selector": {}, "storeTimeout": "%v", "limits": [%s]}`, patience, strings.Join(limits, ","))
}
