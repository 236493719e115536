package limiter

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// 100 requests over 10 pods with an uneven split: each limited to 10, they admit
// 55. With one count that is leased from, all but what may lie idle.
func TestLeasedAdmitsAnUnevenSplitOnRedis(t *testing.T) {
	client := testredis.Shared(t).Client(t)
	split := []int{1, 2, 3, 4, 5, 40, 30, 5, 5, 5}
	for _, a := range algorithms {
		t.Run(string(a), func(t *testing.T) {
			l := limitOf(a, 100, time.Hour)
			h := Hit{Rule: leasedRule(l, 20), Key: keyOf(t, l), Cost: 1}
			var admitted atomic.Int64
			var wg sync.WaitGroup
			for _, requests := range split {
				pod := leasesOf(t, NewRedis(client, RedisOptions{}), 10)
				wg.Go(func() {
					for range requests {
						n, _ := grant(t, pod, h, 1)
						admitted.Add(n)
					}
				})
			}
			wg.Wait()
			if n := admitted.Load(); n < 80 || n > 100 {
				t.Fatalf("%d were admitted, want 80..100", n)
			}
		})
	}
}

// Four pods, each with its own connections, want four times the limit at once:
// they get nearly all of it, the rest comes back, and there is no more.
func TestLeasedReachesItsLimitWithFewCallsToRedis(t *testing.T) {
	server := testredis.Shared(t)
	const limit = 2000
	for _, a := range algorithms {
		t.Run(string(a), func(t *testing.T) {
			l := limitOf(a, limit, time.Hour)
			h := Hit{Rule: leasedRule(l, 10), Key: keyOf(t, l), Cost: 1}
			s := &countingStore{Store: NewRedis(server.Client(t), RedisOptions{})}
			var admitted atomic.Int64
			var wg sync.WaitGroup
			all := make([]*leases, 4)
			for i := range all {
				all[i] = leasesOf(t, s, len(all))
				for range 4 {
					wg.Go(func() {
						for range limit / 4 {
							n, _ := grant(t, all[i], h, 1)
							admitted.Add(n)
						}
					})
				}
			}
			wg.Wait()
			calls := s.calls.Load()
			for _, pod := range all {
				pod.close(t.Context())
			}
			n := admitted.Load()
			if back := left(t, s, h); n+back < limit || a != policy.TokenBucket && n+back > limit {
				t.Errorf("%d were admitted and %d given back", n, back)
			}
			if n < limit*97/100 || float64(calls) > 0.2*float64(n) {
				t.Errorf("%d were admitted by %d calls", n, calls)
			}
		})
	}
}

// Steadily at four times the limit, a pod asks once for what several requests get.
func TestLeasedAsksRedisSeldomWhenTheLimitIsReached(t *testing.T) {
	server := testredis.Shared(t)
	for _, a := range algorithms {
		t.Run(string(a), func(t *testing.T) {
			t.Parallel()
			l := limitOf(a, 1000, time.Second)
			h := Hit{Rule: leasedRule(l, 10), Key: keyOf(t, l), Cost: 1}
			var admitted, calls atomic.Int64
			var pods, requests sync.WaitGroup
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			for range 4 {
				s := &countingStore{Store: NewRedis(server.Client(t), RedisOptions{})}
				pod := leasesOf(t, s, 4)
				pods.Go(func() {
					tick := time.NewTicker(time.Millisecond)
					defer tick.Stop()
					for {
						select {
						case <-ctx.Done():
							requests.Wait()
							calls.Add(s.calls.Load())
							return
						case <-tick.C:
							n, _ := grant(t, pod, h, 1)
							admitted.Add(n)
						}
					}
				})
			}
			pods.Wait()
			n, asked := admitted.Load(), calls.Load()
			t.Logf("%d were admitted by %d calls", n, asked)
			if float64(asked) > 0.2*float64(n) || n < 1900 {
				t.Errorf("%d were admitted by %d calls", n, asked)
			}
		})
	}
}

// What Redis counted is spent while it is down, and no more; then it is back.
func TestLeasedOutlivesRedisByWhatIsAtHand(t *testing.T) {
	server := testredis.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr, ContextTimeoutEnabled: true, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	pod := leasesOf(t, NewRedis(client, RedisOptions{}), 1)
	l := limitOf(policy.FixedWindow, 1000, 720*time.Hour)
	h := Hit{Rule: leasedRule(l, 10), Key: keyOf(t, l), Cost: 1}
	grant(t, pod, h, 1)
	found := pod.byKey.load(h.Key)
	for found.hand.left() < 5 {
		grant(t, pod, h, 1)
	}
	server.Kill()
	var spent int64
	var err error
	for err == nil {
		var n int64
		n, _, err = pod.take(t.Context(), &h, 1, time.Second)
		spent += n
	}
	if spent < 5 || spent > 100 {
		t.Errorf("%d were admitted without Redis", spent)
	}
	server.Restart(t)
	if n, _ := grant(t, pod, h, 1); n != 1 {
		t.Error("refused when Redis was back")
	}
}
