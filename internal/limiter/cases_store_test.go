package limiter

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// Faults that others had with what a store refuses, forgets or gathers.

// R21: a server that lets no script ask for the time decides nothing. The limit's
// failure policy does, and says so; a pod's clock never takes the place of Redis's,
// since two of them do not agree. The Redis that is supported, 7 and later, allows
// it.
func TestServerThatRefusesTheTimeIsLeftToTheFailurePolicy(t *testing.T) {
	server := testredis.Start(t)
	command(t, server.Client(t), "ACL", "SETUSER", "pod", "on", ">pw", "~*", "+@all", "-time")
	client := redis.NewClient(&redis.Options{Addr: server.Addr, Username: "pod", Password: "pw"})
	t.Cleanup(func() { _ = client.Close() })
	e := NewEngine(NewRedis(client, RedisOptions{}), EngineOptions{})
	t.Cleanup(func() { e.Close(context.Background()) })
	for failure, granted := range map[policy.FailurePolicy]int64{
		policy.FailureBackstop: 1, policy.FailureAllow: 1, policy.FailureDeny: 0,
	} {
		for _, a := range append(algorithms, policy.Concurrency) {
			l := perMinute(8, policy.Exact, failure)
			l.Algorithm = a
			hit := Hit{Rule: planned(t, l), Cost: 1}
			hit.Key = keyOf(t, hit.Rule.Limit())
			c := do(t, e, Call{Hits: []Hit{hit}})
			if c.Granted != granted || !c.Results[0].Degraded {
				t.Errorf("%s, %s: %d are granted, %+v", a, failure, c.Granted, c.Results[0])
			}
			if _, refused := errors.AsType[redis.Error](c.Failure); !refused {
				t.Errorf("%s, %s: the failure is %v", a, failure, c.Failure)
			}
		}
	}
}

// R27: a counter that Redis evicts starts anew, as one that has expired. Nothing
// else suffers: no error, no half of a counter. Only noeviction keeps a limit's
// promise, see docs/counting.md.
func TestEvictedCounterStartsAnew(t *testing.T) {
	s, client := live(t, testredis.Start(t, "--maxmemory-policy", "allkeys-lru"))
	var hits []Hit
	for _, a := range algorithms {
		l := limitOf(a, 2, 720*time.Hour)
		hits = append(hits, Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 2})
	}
	take(t, s, hits...)
	command(t, client, "CONFIG", "SET", "maxmemory", "1") // evicts all there is
	if err := client.Set(t.Context(), "other", "", 0).Err(); !redis.IsOOMError(err) {
		t.Fatalf("the memory is not full: %v", err)
	}
	diff(t, "keys", command(t, client, "DBSIZE"), any(int64(0)))
	command(t, client, "CONFIG", "SET", "maxmemory", "0")
	diff(t, "remaining", remainingOf(take(t, s, hits...)), []int64{0, 0, 0, 0})
	diff(t, "remaining", remainingOf(take(t, s, hits...)), []int64{0, 0, 0, 0})
}

// R33: a full log is not read through. A refusal takes as many commands as a
// bisection has steps, 17 for 100,000 entries, and a few more.
func TestFullLogIsNotReadThrough(t *testing.T) {
	server := testredis.Start(t)
	s, client := live(t, server)
	for _, entries := range []int{10, policy.MaxSlidingLogRequests} {
		hit := fullLog(t, client, entries)
		for _, cost := range []int64{1, int64(entries) / 2, int64(entries)} {
			hit.Cost = cost
			command(t, client, "CONFIG", "RESETSTAT")
			if r := take(t, s, hit)[0]; r.Allowed || r.RetryAfter <= 0 {
				t.Fatalf("%d of a full log: %+v", cost, r)
			}
			if n := commandsOfScripts(t, client); n > 30 {
				t.Errorf("%d entries, cost %d: %d commands, want at most 30", entries, cost, n)
			}
		}
	}
}

// fullLog returns a hit on a log with one unit in each entry, and no room.
func fullLog(t testing.TB, client *redis.Client, entries int) Hit {
	l := limitOf(policy.SlidingLog, int64(entries), time.Hour)
	hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
	now := time.Now().UnixMicro()
	var members []redis.Z
	for i := range entries {
		members = append(members, redis.Z{Score: float64(now - int64(entries) + int64(i)), Member: fmt.Sprintf("%016d:1", i+1)})
		if len(members) == 1000 || i == entries-1 {
			if err := client.ZAdd(t.Context(), hit.Key, members...).Err(); err != nil {
				t.Fatal(err)
			}
			members = members[:0]
		}
	}
	command(t, client, "PEXPIRE", hit.Key, time.Hour.Milliseconds())
	return hit
}

var commandCalls = regexp.MustCompile(`cmdstat_([a-z|]+):calls=(\d+)`)

// commandsOfScripts is how many commands the server has carried out, but for
// those that clients send.
func commandsOfScripts(t *testing.T, client *redis.Client) (n int) {
	t.Helper()
	info := command(t, client, "INFO", "commandstats").(string)
	for _, m := range commandCalls.FindAllStringSubmatch(info, -1) {
		if calls, _ := strconv.Atoi(m[2]); !strings.HasPrefix(m[1], "evalsha") && !strings.HasPrefix(m[1], "config") {
			n += calls
		}
	}
	if n == 0 {
		t.Fatalf("no commands in %s", info)
	}
	return n
}

// BenchmarkFullSlidingLog is a refusal by logs of different lengths: 100,000
// entries take about as long as 100.
func BenchmarkFullSlidingLog(b *testing.B) {
	s, client := live(b, testredis.Start(b))
	for _, entries := range []int{100, policy.MaxSlidingLogRequests} {
		hits := []Hit{fullLog(b, client, entries)}
		b.Run(strconv.Itoa(entries), func(b *testing.B) {
			for b.Loop() {
				if _, err := ask(b.Context(), s, Take, hits); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// P3: there is nothing in Redis but a key for each counter, and a token's, and
// all of them expire: no index, no set of names.
func TestNothingIsStoredBesidesCounters(t *testing.T) {
	s, client := live(t, testredis.Start(t))
	const keys = 200
	want := 0
	for _, a := range append(algorithms, policy.Concurrency) {
		l := limitOf(a, 5, time.Hour)
		base := keyOf(t, l)
		for i := range keys {
			hits := []Hit{{Rule: rule(l), Key: base + strconv.Itoa(i), Cost: 1}}
			do(t, s, Call{Hits: hits, Token: "a"})
			do(t, s, Call{Op: Peek, Hits: hits})
			do(t, s, Call{Op: Reserve, Hits: hits, Token: "b"})
			do(t, s, Call{Op: Settle, Hits: hits, Token: "b"})
			do(t, s, Call{Op: Charge, Hits: hits, Token: "c"})
			want += 2 // a counter and the token of the charge
		}
	}
	stored := command(t, client, "KEYS", "*").([]any)
	diff(t, "keys", len(stored), want)
	for _, key := range stored {
		if ttl := command(t, client, "PTTL", key).(int64); ttl <= 0 {
			t.Fatalf("%s stays for ever", key)
		}
	}
}

// P5: what a process keeps of keys is bounded, or goes when their windows end:
// new keys in each window need no more room than those of the first.
func TestManyKeysNeedNoMoreRoomWithTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, store := engineOver(t, 2)
		const keys = 5000
		window := func(number int) map[string]int {
			for _, mode := range []policy.DistributionMode{policy.Exact, policy.Leased, policy.Synced, policy.Split} {
				r := planned(t, perMinute(100, mode, policy.FailureBackstop))
				for i := range keys {
					do(t, e, Call{Hits: []Hit{{Rule: r, Key: fmt.Sprint(mode, number, i), Cost: 1}}})
				}
			}
			return map[string]int{
				"counters of the store": len(store.Store.(*Memory).counters),
				"counters of splits":    countersOf(e.splits.counters),
				"leases":                e.leases.byKey.size(),
				"views":                 int(e.syncs.views.Load()),
			}
		}
		first := window(0)
		for number := range 3 {
			pause(2 * time.Minute)
			for what, n := range window(1 + number) {
				if first[what] == 0 || n > first[what]*11/10 {
					t.Errorf("window %d: %d %s, %d in the first", 2+number, n, what, first[what])
				}
			}
		}
	})
}

// P5: with as many leases as there may be, the shared count decides the requests of
// new keys, and those that are known go on.
func TestLeasesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &countingStore{Store: NewMemory(time.Now)}
		l := leasesOf(t, s, 1)
		r := leasedRule(limitOf(policy.FixedWindow, 1000, time.Hour), 10)
		known := Hit{Rule: r, Key: "known", Cost: 1}
		spend(t, l, known, 50)
		diff(t, "leases", l.inUse.Load(), 1)
		l.inUse.Store(maxLeases)
		for i := range 10 {
			h := Hit{Rule: r, Key: strconv.Itoa(i), Cost: 400}
			diff(t, "granted to a new key", spend(t, l, h, 4), 2)
		}
		diff(t, "granted", spend(t, l, known, 50), 50)
		diff(t, "leases", l.byKey.size(), 1)
		l.inUse.Store(1)
		pause(time.Minute)
		diff(t, "leases", l.inUse.Load(), 0)
	})
}

func sizeOf(m *sync.Map) (n int) {
	m.Range(func(any, any) bool { n++; return true })
	return n
}

func countersOf(l *localCounters) (n int) {
	for _, shard := range l.shards {
		n += len(shard.counters)
	}
	return n
}
