package limiter

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
		"reservations of different tags":            testReserveAcrossTags,
		"concurrent calls never exceed a limit":     testConcurrentAcrossTags,
		"a lost reply is not charged twice":         testLostReplyOnCluster,
		"units that are not given back are told of": testNotGivenBack,
		"a request that ends still gives back":      testGiveBackOutlivesRequest,
		"pipelines are sent again where need be":    testPipelines,
		"calendars go by the server's clock":        testCalendarsOnACluster,
		"what is exact is linearizable":             testExact,
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
		hits[i] = Hit{Rule: rule(l), Key: CounterKey(KeyBase(testredis.Prefix(t), "n", "p", "l", rule(l)), fmt.Sprint("1:", i)), Cost: 1}
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
	mu      sync.Mutex
	scripts int
	// after is called with the number of each call when it is answered.
	after func(n int)
}

func (c *counts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		c.count(cmd)
		return err
	}
}

func (c *counts) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *counts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			c.count(cmd)
		}
		return err
	}
}

func (c *counts) count(cmd redis.Cmder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cmd.Name() == "evalsha" {
		c.scripts++
		if c.after != nil {
			c.after(c.scripts)
		}
	}
}

// clientWith returns a client whose nodes' calls are counted.
func clientWith(t *testing.T, cluster *testredis.Cluster, c *counts) *redis.ClusterClient {
	client := cluster.Client(t)
	client.OnNewNode(func(node *redis.Client) { node.AddHook(c) })
	return client
}

func testOneTag(t *testing.T, cluster *testredis.Cluster) {
	calls := &counts{}
	client := clientWith(t, cluster, calls)
	loadScript(t, client)
	s := NewRedis(client, RedisOptions{})
	for _, tag := range []string{"1:a", "1:b", "1:c", "1:d", "*"} {
		var hits []Hit
		for i, a := range algorithms {
			l := limitOf(a, 10, 720*time.Hour)
			hits = append(hits, Hit{Rule: rule(l), Key: CounterKey(KeyBase(testredis.Prefix(t), "n", "p", "l", rule(l)), tag), Cost: 1, Shadow: i == 3})
		}
		before := calls.scripts
		diff(t, "remaining", remainingOf(take(t, s, hits...)), []int64{9, 9, 9, 9})
		if n := calls.scripts - before; n != 1 {
			t.Fatalf("%d script calls for one tag", n)
		}
	}
}

func testGiveBackOnRefusal(t *testing.T, cluster *testredis.Cluster) {
	s := NewRedis(cluster.Client(t), RedisOptions{})
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
	s := NewRedis(cluster.Client(t), RedisOptions{})
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

func testReserveAcrossTags(t *testing.T, cluster *testredis.Cluster) {
	s := NewRedis(cluster.Client(t), RedisOptions{})
	hits := append(tagged(t, 10), tagged(t, 10)...) // two of each tag
	for i := range hits {
		hits[i].Cost, hits[i].Shadow = 5, i%3 == 0
	}
	full := hits[0] // a shadow
	full.Cost = 10
	take(t, s, full)
	c := do(t, s, Call{Op: Reserve, Hits: hits, Token: "me"})
	diff(t, "reserved", c.Granted, 1)
	diff(t, "remaining", remainingOf(c.Results), []int64{0, 5, 5, 10, 5, 5, 10, 5})
	for i := range hits {
		hits[i].Cost = 2
	}
	c = do(t, s, Call{Op: Settle, Hits: hits, Token: "me"})
	diff(t, "settled", c.Granted, 1)
	diff(t, "remaining", remainingOf(peek(t, s, hits...)), []int64{0, 8, 8, 10, 8, 8, 10, 8})
}

func testConcurrentAcrossTags(t *testing.T, cluster *testredis.Cluster) {
	s := NewRedis(cluster.Client(t), RedisOptions{})
	hits := tagged(t, 10)
	hits[3].Rule = rule(limitOf(policy.TokenBucket, 7, 720*time.Hour))
	var mu sync.Mutex
	var admitted int64
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			results, err := ask(t.Context(), s, Take, hits)
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
	loseReply(t, NewRedis(client, RedisOptions{}), &dialer)
}

func testNotGivenBack(t *testing.T, cluster *testredis.Cluster) {
	var dialer lossyDialer
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs, Dialer: dialer.dial})
	t.Cleanup(func() { _ = client.Close() })
	var lost int64
	s := NewRedis(client, RedisOptions{Hooks: Hooks{GivenBack: func(n int64, err error) {
		if err != nil {
			lost += n
		}
	}}})
	hits := tagged(t, 10)[:2]
	full := hits[1]
	full.Cost = 10
	take(t, s, full)

	dialer.loseAfter(2)
	r, err := ask(t.Context(), s, Take, hits)
	if err != nil || r[1].Allowed || r[1].Reason != LimitExceeded {
		t.Fatalf("a refusal stays a refusal: %+v, %v", r, err)
	}
	diff(t, "told of", lost, 1)
}

// A caller that leaves, at whichever turn, has taken nothing.
func testGiveBackOutlivesRequest(t *testing.T, cluster *testredis.Cluster) {
	s := NewRedis(cluster.Client(t), RedisOptions{})
	hits := tagged(t, 10)[:3]
	full := hits[2]
	full.Cost = 10
	take(t, s, full)
	for leaveAt := 1; leaveAt <= 3; leaveAt++ { // the third refuses
		ctx, cancel := context.WithCancel(t.Context())
		leaving := NewRedis(clientWith(t, cluster, &counts{after: func(n int) {
			if n == leaveAt {
				cancel()
			}
		}}), RedisOptions{})
		if _, err := ask(ctx, leaving, Take, hits); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		cancel()
		want := []int64{10, 10, 0}
		for start := time.Now(); !slices.Equal(remainingOf(peek(t, s, hits...)), want); {
			if time.Since(start) > 5*time.Second {
				t.Fatalf("after leaving at turn %d: %v remain, want %v", leaveAt, remainingOf(peek(t, s, hits...)), want)
			}
		}
	}
}
