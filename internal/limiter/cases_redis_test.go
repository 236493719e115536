package limiter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// Faults that others had with Redis and Lua. The numbers name the rows of the
// table in docs/cases.md.

// live returns a store by the server's own time, and its client.
func live(t testing.TB, server *testredis.Server) (*Redis, *redis.Client) {
	client := server.Client(t)
	return NewRedis(client, RedisOptions{}), client
}

// R1: a counter without a TTL, as a crash between INCR and EXPIRE leaves it with
// others, refuses until the window ends, and not for ever.
func TestCounterWithoutTTLIsRepairedOnRefusal(t *testing.T) {
	client := testredis.Shared(t).Client(t)
	fullUntilItsWindowEnds(t, client, func(key string) { command(t, client, "SET", key, "999") })
}

// R3: the same after a restart from an RDB file that has such a counter.
func TestCounterWithoutTTLIsRepairedAfterReload(t *testing.T) {
	client := testredis.Start(t, "--enable-debug-command", "yes").Client(t)
	fullUntilItsWindowEnds(t, client, func(key string) {
		command(t, client, "SET", key, "999")
		command(t, client, "DEBUG", "RELOAD")
	})
}

func fullUntilItsWindowEnds(t *testing.T, client *redis.Client, fill func(key string)) {
	t.Helper()
	for _, a := range []policy.Algorithm{policy.FixedWindow, policy.SlidingWindow} {
		c := &clock{epoch}
		s := NewRedis(client, RedisOptions{Now: func() int64 { return c.micros }})
		l := limitOf(a, 5, 2*time.Second)
		hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
		fill(hit.Key)

		r := take(t, s, hit)[0]
		if r.Allowed || r.Remaining != 0 || r.RetryAfter <= 0 {
			t.Fatalf("%s: a counter at 999 gives %+v", a, r)
		}
		if ttl := command(t, client, "PTTL", hit.Key).(int64); ttl < 0 {
			t.Fatalf("%s: its TTL is %d ms", a, ttl)
		}
		c.micros += r.RetryAfter.Microseconds()
		if a == policy.FixedWindow {
			c.set(2100 * time.Millisecond)
		}
		if r := take(t, s, hit)[0]; !r.Allowed {
			t.Fatalf("%s: after the window: %+v", a, r)
		}
	}
}

// A counter of any algorithm that lost its TTL gets it back, by whatever call
// touches it.
func TestLostTTLIsRepaired(t *testing.T) {
	s, client := live(t, testredis.Shared(t))
	for _, a := range algorithms {
		hit := Hit{Rule: rule(limitOf(a, 1, time.Hour)), Cost: 1}
		hit.Key = keyOf(t, hit.Rule.Limit())
		take(t, s, hit)
		for name, op := range map[string]Op{"take": Take, "peek": Peek} {
			command(t, client, "PERSIST", hit.Key)
			results, err := ask(t.Context(), s, op, []Hit{hit})
			if err != nil || results[0].Allowed {
				t.Fatalf("%s of a full %s: %+v, %v", name, a, results, err)
			}
			hasTTL(t, client, hit.Key, fmt.Sprint(name, " of a full ", a))
		}
	}
}

// hasTTL checks that a key of a window of an hour ends within two.
func hasTTL(t *testing.T, client redis.Cmdable, key, after string) {
	t.Helper()
	if ttl := command(t, client, "PTTL", key).(int64); ttl <= 0 || ttl > 2*time.Hour.Milliseconds() {
		t.Errorf("%s leaves a TTL of %d ms", after, ttl)
	}
}

// To give a part of the only entry of a log back makes its key anew.
func TestARefundLeavesATTL(t *testing.T) {
	s, client := live(t, testredis.Shared(t))
	for _, a := range algorithms {
		hit := Hit{Rule: rule(limitOf(a, 10, time.Hour)), Cost: 3}
		hit.Key = keyOf(t, hit.Rule.Limit())
		take(t, s, hit)
		hit.Cost = 1
		do(t, s, Call{Op: Refund, Hits: []Hit{hit}})
		hasTTL(t, client, hit.Key, fmt.Sprint("a refund of a ", a))
	}
}

// R5: no counter stays longer than its window; a SlidingWindow, by its nature,
// two windows, and a TokenBucket a quarter more, so that not every take has to
// move the expiry. The one millisecond is PTTL's rounding.
func TestCountersExpireWithTheirWindow(t *testing.T) {
	s, client := live(t, testredis.Shared(t))
	for _, window := range []time.Duration{100 * time.Millisecond, time.Second, time.Minute, time.Hour, 30 * 24 * time.Hour} {
		for _, a := range algorithms {
			hit := Hit{Rule: rule(limitOf(a, 1, window)), Cost: 1}
			hit.Key = keyOf(t, hit.Rule.Limit())
			take(t, s, hit)
			longest := window
			switch a {
			case policy.SlidingWindow:
				longest = 2 * window
			case policy.TokenBucket:
				longest = window + window/4
			}
			if ttl := command(t, client, "PTTL", hit.Key).(int64); ttl == -1 || ttl > longest.Milliseconds()+1 {
				t.Errorf("%s of %v stays for %d ms", a, window, ttl)
			}
		}
	}
}

// R7: flushed scripts are sent again; no request fails, and none is counted
// twice or not at all.
func TestScriptFlushUnderLoadFailsNothing(t *testing.T) {
	s, client := live(t, testredis.Start(t))
	const workers, each, limit = 4, 250, 700
	var hits []Hit
	for _, a := range algorithms {
		l := limitOf(a, limit, 720*time.Hour)
		hits = append(hits, Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1})
	}
	ctx, stop := context.WithCancel(t.Context())
	var flushing, working sync.WaitGroup
	flushing.Go(func() {
		for ctx.Err() == nil {
			_ = client.ScriptFlush(ctx).Err()
		}
	})
	var admitted, failed atomic.Int64
	for range workers {
		working.Go(func() {
			for range each {
				results, err := ask(t.Context(), s, Take, hits)
				if err != nil {
					failed.Add(1)
				} else if allAllowed(results) {
					admitted.Add(1)
				}
			}
		})
	}
	working.Wait()
	stop()
	flushing.Wait()
	if failed.Load() != 0 || admitted.Load() != limit {
		t.Fatalf("%d failed, %d of %d were admitted by a limit of %d", failed.Load(), admitted.Load(), workers*each, limit)
	}
}

func allAllowed(results []Result) bool {
	for _, r := range results {
		if !r.Allowed {
			return false
		}
	}
	return true
}

// atOnce takes the same hit n times at once and counts who was admitted.
func atOnce(t *testing.T, s Store, hit Hit, n int) (admitted int64) {
	t.Helper()
	var count atomic.Int64
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			results, err := ask(t.Context(), s, Take, []Hit{hit})
			if err != nil {
				t.Error(err)
			} else if results[0].Allowed {
				count.Add(1)
			}
		})
	}
	wg.Wait()
	return count.Load()
}

// R9: all of 50 requests at once are answered after the scripts are gone.
func TestConcurrentCallsAfterScriptFlushAreAllAnswered(t *testing.T) {
	s, client := live(t, testredis.Start(t))
	l := limitOf(policy.SlidingWindow, 50, time.Hour)
	hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
	for round := range 5 {
		command(t, client, "SCRIPT", "FLUSH")
		command(t, client, "DEL", hit.Key)
		if n := atOnce(t, s, hit, 50); n != 50 {
			t.Fatalf("round %d: %d of 50 were admitted", round, n)
		}
	}
}

// R11: an answer that is lost is an error, and the request is charged once at
// most, with a client that would repeat its commands too. A ClusterClient, which
// always would, is in TestOnACluster.
func TestLostReplyIsNotChargedTwice(t *testing.T) {
	var dialer lossyDialer
	client := redis.NewClient(&redis.Options{Addr: testredis.Shared(t).Addr, Dialer: dialer.dial, MaxRetries: 5})
	t.Cleanup(func() { _ = client.Close() })
	loseReply(t, NewRedis(client, RedisOptions{}), &dialer)
}

func loseReply(t *testing.T, s Store, dialer *lossyDialer) {
	t.Helper()
	l := limitOf(policy.FixedWindow, 10, 720*time.Hour)
	hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
	take(t, s, hit)
	dialer.loseNext()
	if _, err := ask(t.Context(), s, Take, []Hit{hit}); err == nil {
		t.Fatal("a lost reply is no error")
	}
	if r := peek(t, s, hit)[0]; r.Remaining != 8 {
		t.Fatalf("after two takes: %+v", r)
	}
}

// R23: waits of less than a second, and of less than a millisecond, are told.
func TestShortWaitsAreNotRoundedToZero(t *testing.T) {
	onBothStores(t, func(t *testing.T, s Store, c *clock) {
		hit := Hit{Rule: rule(Limit{Algorithm: policy.TokenBucket, Requests: 10, Window: time.Second, Burst: 1}), Cost: 1}
		hit.Key = keyOf(t, hit.Rule.Limit())
		take(t, s, hit)
		for at, want := range map[time.Duration]time.Duration{50 * time.Millisecond: 50 * time.Millisecond, 99_999 * time.Microsecond: time.Microsecond} {
			c.set(at)
			if r := take(t, s, hit)[0]; r.Allowed || r.RetryAfter != want {
				t.Fatalf("%v later: %+v, want a wait of %v", at, r, want)
			}
		}
	})
}

// R25: a cost is an integer by its type; what can still be wrong with numbers is
// refused before Redis is asked.
func TestHitsOutOfBoundsAreRefusedWithoutAStore(t *testing.T) {
	good := Hit{Rule: rule(limitOf(policy.TokenBucket, 5, time.Second)), Key: "k", Cost: 1}
	slot := Hit{Rule: rule(limitOf(policy.Concurrency, 5, time.Second)), Key: "s", Cost: 1}
	down := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = down.Close() })
	for name, bad := range map[string]Call{
		"negative cost":       {Hits: []Hit{good, {Rule: good.Rule, Key: "other", Cost: -1}}},
		"negative count":      {Hits: []Hit{good}, Count: -1},
		"2^53 requests":       {Hits: []Hit{good}, Count: policy.MaxInteger + 1},
		"too many hits":       {Hits: make([]Hit, 256)},
		"unknown op":          {Op: 99, Hits: []Hit{good}},
		"a long token":        {Op: Refund, Hits: []Hit{good}, Token: strings.Repeat("x", 201)},
		"a token for a week":  {Op: Refund, Hits: []Hit{good}, Token: "x", TokenTTL: 7 * 24 * time.Hour},
		"nameless reserve":    {Op: Reserve, Hits: []Hit{good}},
		"nameless settle":     {Op: Settle, Hits: []Hit{good}},
		"reserve for several": {Op: Reserve, Hits: []Hit{good}, Token: "x", Count: 2},
		"slots without name":  {Hits: []Hit{slot}},
	} {
		for _, s := range []Store{NewRedis(down, RedisOptions{}), NewMemory(time.Now)} {
			if err := s.Do(t.Context(), &bad); !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: %T says %v, want ErrInvalid", name, s, err)
			}
		}
	}
}

func TestLimitsOutOfBoundsMakeNoRule(t *testing.T) {
	for name, spoil := range map[string]func(l *Limit){
		"negative requests":   func(l *Limit) { l.Requests = -1 },
		"2^53 requests":       func(l *Limit) { l.Requests = policy.MaxInteger + 1 }, // C21
		"no window":           func(l *Limit) { l.Window = 0 },
		"negative window":     func(l *Limit) { l.Window = -time.Second },
		"part of millisecond": func(l *Limit) { l.Window = 1500 * time.Microsecond },
		"a window of 200 y":   func(l *Limit) { l.Window = 200 * 365 * 24 * time.Hour },
		"no burst":            func(l *Limit) { l.Burst = 0 },
		"2^53 burst":          func(l *Limit) { l.Burst = policy.MaxInteger + 1 },
		"a log of 100,001":    func(l *Limit) { *l = limitOf(policy.SlidingLog, 100_001, time.Second) },
		"unknown algorithm":   func(l *Limit) { l.Algorithm = "LeakyBucket" },
	} {
		l := limitOf(policy.TokenBucket, 5, time.Second)
		spoil(&l)
		if _, err := NewRule(l); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

// R29: hits of the same microsecond are different hits.
func TestHitsOfTheSameMicrosecondAllCount(t *testing.T) {
	c := &clock{epoch}
	s := simulated(t, c)["Redis"]
	l := limitOf(policy.SlidingLog, 10, time.Second)
	hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
	if n := atOnce(t, s, hit, 50); n != 10 {
		t.Fatalf("%d of 50 were admitted, limit 10", n)
	}
	// Those that came in one call share an entry.
	diff(t, "remaining", peek(t, s, hit)[0].Remaining, 0)
}

// R31: an entry leaves the log exactly one window after it came; and of many
// clients at once, one is admitted.
func TestLogTrimsBeforeItCounts(t *testing.T) {
	onBothStores(t, func(t *testing.T, s Store, c *clock) {
		l := limitOf(policy.SlidingLog, 1, time.Second)
		hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
		for _, step := range []struct {
			at      time.Duration
			allowed bool
		}{{0, true}, {999_999 * time.Microsecond, false}, {time.Second, true}, {2*time.Second + time.Microsecond, true}} {
			c.set(step.at)
			if r := take(t, s, hit)[0]; r.Allowed != step.allowed {
				t.Fatalf("at %v: %+v", step.at, r)
			}
		}
		c.set(time.Minute)
		if n := atOnce(t, s, hit, 100); n != 1 {
			t.Fatalf("%d of 100 at once were admitted, limit 1", n)
		}
	})
}

// A log's totals go on at 0 after 2^53-1; order and sums stay right, also within
// one microsecond.
func TestLogTotalsWrapAround(t *testing.T) {
	c := &clock{epoch}
	s := simulated(t, c)["Redis"].(*Redis)
	client := testredis.Shared(t).Client(t)
	l := limitOf(policy.SlidingLog, 10, time.Second)
	hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 3}
	command(t, client, "ZADD", hit.Key, epoch, "9007199254740990:1")
	for i, want := range []int64{6, 3, 0} {
		if r := take(t, s, hit)[0]; !r.Allowed || r.Remaining != want {
			t.Fatalf("take %d: %+v, want remaining %d", i, r, want)
		}
	}
	r := take(t, s, hit)[0]
	// The first entry ends after a second; the second, which makes room for 3, a
	// microsecond later: it came after the wrap.
	if r.Allowed || r.RetryAfter != time.Second+time.Microsecond {
		t.Fatalf("a full log: %+v", r)
	}
	hit.Cost = 8 // two entries, and two thirds of the one that wrapped
	do(t, s, Call{Op: Refund, Hits: []Hit{hit}})
	diff(t, "remaining when 8 came back", peek(t, s, hit)[0].Remaining, 8)
}

// A missing permission is an error, and not a counter that starts anew.
func TestRefusedCommandIsAnError(t *testing.T) {
	server := testredis.Start(t)
	command(t, server.Client(t), "ACL", "SETUSER", "pod", "on", ">pw", "~*", "+@all", "-get", "-zcard")
	s := NewRedis(redis.NewClient(&redis.Options{Addr: server.Addr, Username: "pod", Password: "pw"}), RedisOptions{
		Hooks: Hooks{Corrupt: func(key string) { t.Errorf("%s is called corrupt", key) }},
	})
	t.Cleanup(func() { _ = s.client.Close() })
	for _, a := range algorithms {
		l := limitOf(a, 5, time.Hour)
		_, err := ask(t.Context(), s, Take, []Hit{{Rule: rule(l), Key: keyOf(t, l), Cost: 1}})
		if _, refused := errors.AsType[redis.Error](err); !refused {
			t.Errorf("%s: %v, want the server's refusal", a, err)
		}
	}
}
