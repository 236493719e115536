package limiter

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// R13: a Redis Cluster of three masters.
func TestOnACluster(t *testing.T) {
	cluster := testredis.StartCluster(t, 3)
	for name, test := range map[string]func(*testing.T, *testredis.Cluster){
		"hits of one tag are one call":              testOneTag,
		"a refusal gives back what others took":     testGiveBackOnRefusal,
		"shadows are taken after all others":        testShadowsAcrossTags,
		"concurrent calls never exceed a limit":     testConcurrentAcrossTags,
		"a lost reply is not charged twice":         testLostReplyOnCluster,
		"units that are not given back are told of": testNotGivenBack,
		"a request that ends still gives back":      testGiveBackOutlivesRequest,
	} {
		t.Run(name, func(t *testing.T) { test(t, cluster) })
	}
}

// tagged makes hits of each algorithm on different tags; their slots are on
// different nodes, or not.
func tagged(t *testing.T, requests int64) []Hit {
	hits := make([]Hit, len(algorithms))
	for i, a := range algorithms {
		l := limitOf(a, requests, 720*time.Hour)
		hits[i] = Hit{Limit: l, Key: CounterKey(KeyBase(testredis.Prefix(t), "n", "p", "l", l), fmt.Sprint("1:", i)), Cost: 1}
	}
	return hits
}

func remainingOf(results []Result) []int64 {
	var left []int64
	for _, r := range results {
		left = append(left, r.Remaining)
	}
	return left
}

// counts counts the script calls of a client.
type counts struct {
	scripts int
	// after is called with the number of each call when it is answered.
	after func(n int)
}

func (c *counts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "evalsha" {
			c.scripts++
			if c.after != nil {
				c.after(c.scripts)
			}
		}
		return err
	}
}

func (c *counts) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *counts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func testOneTag(t *testing.T, cluster *testredis.Cluster) {
	client := cluster.Client(t)
	calls := &counts{}
	client.AddHook(calls)
	s := NewRedis(client, Hooks{})
	for _, tag := range []string{"1:a", "1:b", "1:c", "1:d", "*"} {
		var hits []Hit
		for i, a := range algorithms {
			l := limitOf(a, 10, 720*time.Hour)
			hits = append(hits, Hit{Limit: l, Key: CounterKey(KeyBase(testredis.Prefix(t), "n", "p", "l", l), tag), Cost: 1, Shadow: i == 3})
		}
		before := calls.scripts
		diff(t, "remaining", remainingOf(take(t, s, hits...)), []int64{9, 9, 9, 9})
		if n := calls.scripts - before; n != 1 {
			t.Fatalf("%d script calls for one tag", n)
		}
	}
}

func testGiveBackOnRefusal(t *testing.T, cluster *testredis.Cluster) {
	s := NewRedis(cluster.Client(t), Hooks{})
	for refusing := range algorithms {
		hits := tagged(t, 10)
		hits[refusing].Cost = 10
		take(t, s, hits[refusing])
		for i := range hits {
			hits[i].Cost = 4
		}
		r := take(t, s, hits...)
		want := []int64{10, 10, 10, 10}
		want[refusing] = 0
		diff(t, "remaining", remainingOf(r), want)
		for i := range r {
			if r[i].Allowed != (i != refusing) {
				t.Fatalf("hit %d: %+v; %d is the full one", i, r[i], refusing)
			}
		}
		diff(t, "remaining later", remainingOf(peek(t, s, hits...)), want)
	}
}

func testShadowsAcrossTags(t *testing.T, cluster *testredis.Cluster) {
	s := NewRedis(cluster.Client(t), Hooks{})
	hits := tagged(t, 10)
	hits[0].Shadow, hits[2].Shadow = true, true
	diff(t, "all admitted", remainingOf(take(t, s, hits...)), []int64{9, 9, 9, 9})

	full := hits[2]
	full.Cost = 9
	take(t, s, full)
	diff(t, "a full shadow", remainingOf(take(t, s, hits...)), []int64{9, 8, 0, 8})
	diff(t, "after a full shadow", remainingOf(peek(t, s, hits...)), []int64{9, 8, 0, 8})

	full = hits[1]
	full.Cost = 8
	take(t, s, full)
	diff(t, "a full limit", remainingOf(take(t, s, hits...)), []int64{9, 0, 0, 8})
	diff(t, "after a full limit", remainingOf(peek(t, s, hits...)), []int64{9, 0, 0, 8})
}

func testConcurrentAcrossTags(t *testing.T, cluster *testredis.Cluster) {
	s := NewRedis(cluster.Client(t), Hooks{})
	hits := tagged(t, 10)
	hits[3].Limit.Requests, hits[3].Limit.Burst = 7, 7
	var mu sync.Mutex
	var admitted int64
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			results, err := s.Take(t.Context(), hits)
			if err != nil {
				t.Error(err)
			} else if allAllowed(results) {
				mu.Lock()
				admitted++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	// Some may be refused for units that are about to come back, none is
	// admitted above the least limit, and all that was not used is back.
	if admitted < 1 || admitted > 7 {
		t.Fatalf("%d were admitted, the least limit is 7", admitted)
	}
	left := 10 - admitted
	diff(t, "remaining", remainingOf(peek(t, s, hits...)), []int64{left, left, left, left - 3})
}

func testLostReplyOnCluster(t *testing.T, cluster *testredis.Cluster) {
	var dialer lossyDialer
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs, Dialer: dialer.dial})
	t.Cleanup(func() { _ = client.Close() })
	loseReply(t, NewRedis(client, Hooks{}), &dialer)
}

func testNotGivenBack(t *testing.T, cluster *testredis.Cluster) {
	var dialer lossyDialer
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs, Dialer: dialer.dial})
	t.Cleanup(func() { _ = client.Close() })
	var lost []Hit
	s := NewRedis(client, Hooks{NotGivenBack: func(hits []Hit, _ error) { lost = append(lost, hits...) }})
	hits := tagged(t, 10)[:2]
	full := hits[1]
	full.Cost = 10
	take(t, s, full)

	dialer.loseAfter(2)
	r, err := s.Take(t.Context(), hits)
	if err != nil || r[1].Allowed || r[1].Reason != LimitExceeded {
		t.Fatalf("a refusal stays a refusal: %+v, %v", r, err)
	}
	diff(t, "told of", lost, hits[:1])
}

func testGiveBackOutlivesRequest(t *testing.T, cluster *testredis.Cluster) {
	client := cluster.Client(t)
	s := NewRedis(client, Hooks{})
	hits := tagged(t, 10)[:2]
	full := hits[1]
	full.Cost = 10
	take(t, s, full)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client.AddHook(&counts{after: func(n int) {
		if n == 2 { // the refusal
			cancel()
		}
	}})
	if _, err := s.Take(ctx, hits); err != nil {
		t.Fatal(err)
	}
	diff(t, "remaining", remainingOf(peek(t, s, hits...)), []int64{10, 0})
}

// C11: what is given back clamps at the limit. Giving back is for calls over
// several tags only; there is no public refund in this version.
func TestGivingBackMoreThanUsedClamps(t *testing.T) {
	// Memory decides in one step and has nothing to give back.
	s := NewRedis(testredis.Shared(t).Client(t), Hooks{Corrupt: func(key string) { t.Errorf("%s is called corrupt", key) }})
	s.now = func() int64 { return epoch }
	for _, a := range algorithms {
		l := limitOf(a, 10, time.Minute)
		hit := Hit{Limit: l, Key: keyOf(t, l), Cost: 2}
		take(t, s, hit)
		for _, step := range []struct{ cost, remaining int64 }{{1, 9}, {7, 10}, {7, 10}, {1000, 10}} {
			back := hit
			back.Cost = step.cost
			if _, err := s.decide(t.Context(), []Hit{back}, verbReturn); err != nil {
				t.Fatal(err)
			}
			if got := peek(t, s, hit)[0]; got.Remaining != step.remaining {
				t.Fatalf("%s: after %d came back: %+v", a, step.cost, got)
			}
		}
	}
}

// Part of a log entry can come back; its rest keeps its time.
func TestGivingBackPartOfALogEntryKeepsItsTime(t *testing.T) {
	c := &clock{epoch}
	s := simulated(t, c)["Redis"].(*Redis)
	l := limitOf(policy.SlidingLog, 10, time.Second)
	hit := Hit{Limit: l, Key: keyOf(t, l), Cost: 6}
	take(t, s, hit)
	c.set(100 * time.Millisecond)
	hit.Cost = 2
	if _, err := s.decide(t.Context(), []Hit{hit}, verbReturn); err != nil {
		t.Fatal(err)
	}
	hit.Cost = 7
	if r := take(t, s, hit)[0]; r.Remaining != 6 || r.RetryAfter != 900*time.Millisecond {
		t.Fatalf("after 2 of 6 came back: %+v", r)
	}
}

// Garbage among a log's entries does not fail a give-back.
func TestGivingBackToASpoiltLogFailsNothing(t *testing.T) {
	client := testredis.Shared(t).Client(t)
	s := NewRedis(client, Hooks{})
	s.now = func() int64 { return epoch }
	l := limitOf(policy.SlidingLog, 10, time.Second)
	hit := Hit{Limit: l, Key: keyOf(t, l), Cost: 2}
	take(t, s, hit)
	do(t, client, "ZADD", hit.Key, epoch, "0000000000000002:garbage")
	take(t, s, hit)
	hit.Cost = 4
	if _, err := s.decide(t.Context(), []Hit{hit}, verbReturn); err != nil {
		t.Fatal(err)
	}
	diff(t, "remaining", peek(t, s, hit)[0].Remaining, 10)
}
