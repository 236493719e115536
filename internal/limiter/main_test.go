package limiter

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

func TestMain(m *testing.M) {
	if job := os.Getenv(childJob); job != "" {
		os.Exit(runChild(job))
	}
	goleak.VerifyTestMain(m)
}

var algorithms = []policy.Algorithm{
	policy.FixedWindow, policy.SlidingWindow, policy.SlidingLog, policy.TokenBucket,
}

// epoch is a time at which windows of every length that divides a day begin.
const epoch = int64(1_764_201_600_000_000) // 2025-11-27T00:00:00Z in µs

// clock is a time in µs that tests set.
type clock struct{ micros int64 }

func (c *clock) time() time.Time { return time.UnixMicro(c.micros) }

func (c *clock) set(sinceEpoch time.Duration) { c.micros = epoch + sinceEpoch.Microseconds() }

// simulated returns a store of each kind that read the given clock.
func simulated(t testing.TB, c *clock) map[string]Store {
	return map[string]Store{"Memory": NewMemory(c.time), "Redis": simulatedRedis(t, c, Hooks{})}
}

func simulatedRedis(t testing.TB, c *clock, hooks Hooks) *Redis {
	client := testredis.Shared(t).Client(t)
	return NewRedis(client, RedisOptions{Hooks: hooks, Now: func() int64 { return c.micros }})
}

// onBothStores runs a test on simulated stores, with the clock at the epoch.
func onBothStores(t *testing.T, test func(t *testing.T, s Store, c *clock)) {
	for name := range simulated(t, &clock{}) {
		t.Run(name, func(t *testing.T) {
			c := &clock{epoch}
			test(t, simulated(t, c)[name], c)
		})
	}
}

// onEveryAlgorithm runs a test with a limit of each algorithm, on simulated
// stores. A TokenBucket has a burst of all requests.
func onEveryAlgorithm(t *testing.T, requests int64, window time.Duration, test func(t *testing.T, s Store, c *clock, l Limit)) {
	for _, a := range algorithms {
		t.Run(string(a), func(t *testing.T) {
			onBothStores(t, func(t *testing.T, s Store, c *clock) {
				test(t, s, c, limitOf(a, requests, window))
			})
		})
	}
}

func limitOf(a policy.Algorithm, requests int64, window time.Duration) Limit {
	return Limit{Algorithm: a, Requests: requests, Window: window, Burst: max(1, requests)}
}

// rule prepares a limit of a test, which is valid.
func rule(l Limit) *Rule {
	r, err := NewRule(l)
	if err != nil {
		panic(err)
	}
	return r
}

// keyOf is the key of a counter that no other test has.
func keyOf(t testing.TB, l Limit) string {
	return CounterKey(KeyBase(testredis.Prefix(t), "shop", "orders", "per-client", rule(l)), "1:a")
}

func ask(ctx context.Context, s Store, op Op, hits []Hit) ([]Result, error) {
	c := &Call{Op: op, Hits: hits}
	err := s.Do(ctx, c)
	return c.Results, err
}

func take(t fataler, s Store, hits ...Hit) []Result {
	t.Helper()
	results, err := ask(t.Context(), s, Take, hits)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

func peek(t fataler, s Store, hits ...Hit) []Result {
	t.Helper()
	results, err := ask(t.Context(), s, Peek, hits)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

// do carries out a call, which does not fail.
func do(t fataler, s Store, c Call) Call {
	t.Helper()
	if err := s.Do(t.Context(), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// countingStore counts the calls to a store, and can be made to fail or to wait.
type countingStore struct {
	Store
	calls atomic.Int64
	down  atomic.Bool
	// before a call is carried out, and after it, before the caller has the answer.
	before, after func(c *Call)
}

var errDown = errors.New("the store is down")

func (s *countingStore) Do(ctx context.Context, c *Call) error {
	s.calls.Add(1)
	if s.before != nil {
		s.before(c)
	}
	if s.down.Load() {
		return errDown
	}
	err := s.Store.Do(ctx, c)
	if s.after != nil {
		s.after(c)
	}
	return err
}

func diff[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("%s (-want +got):\n%s", what, d)
	}
}

func command(t testing.TB, client redis.Cmdable, args ...any) any {
	t.Helper()
	type doer interface {
		Do(ctx context.Context, args ...any) *redis.Cmd
	}
	reply, err := client.(doer).Do(t.Context(), args...).Result()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return reply
}

// fataler is a test, or a property's check.
type fataler interface {
	Helper()
	Context() context.Context
	Fatal(args ...any)
}
