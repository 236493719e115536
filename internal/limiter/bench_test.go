package limiter

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// BenchmarkTake is one hit on a counter that has room, and on a full one.
func BenchmarkTake(b *testing.B) {
	stores := map[string]Store{
		"Memory": NewMemory(time.Now),
		"Redis":  NewRedis(testredis.Shared(b).Client(b), RedisOptions{}),
	}
	for name, s := range stores {
		for _, a := range algorithms {
			for _, requests := range []int64{100_000, 1} {
				l := limitOf(a, requests, 10*time.Second)
				hits := []Hit{{Rule: rule(l), Key: keyOf(b, l), Cost: 1}}
				b.Run(fmt.Sprintf("%s/%s/%d", name, a, requests), func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						if _, err := ask(b.Context(), s, Take, hits); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}

// BenchmarkTakeMany is a request with a limit of each algorithm.
func BenchmarkTakeMany(b *testing.B) {
	s := NewRedis(testredis.Shared(b).Client(b), RedisOptions{})
	var hits []Hit
	for _, a := range algorithms {
		l := limitOf(a, 100_000, time.Hour)
		hits = append(hits, Hit{Rule: rule(l), Key: keyOf(b, l), Cost: 1})
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ask(b.Context(), s, Take, hits); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOneKey is many callers of one counter: decisions a second by the engine, by
// the store alone, and by a PING in place of the script. The last is the most that
// goroutines reach by go-redis when they share calls as ours do.
func BenchmarkOneKey(b *testing.B) {
	client := testredis.Shared(b).Client(b)
	store := NewRedis(client, RedisOptions{})
	engine := NewEngine(store, EngineOptions{})
	b.Cleanup(func() { engine.Close(context.Background()) })
	pings := &lane{
		guard: newGuard(func(context.Context, string) error { return nil }, func(bool) {}),
		late:  func(*flight) {},
		send: func(ctx context.Context, batch []*flight) {
			err := client.Ping(ctx).Err()
			for _, f := range batch {
				f.err = err
			}
		},
	}
	hit := Hit{Rule: rule(limitOf(policy.TokenBucket, 1_000_000_000, time.Hour)), Key: "k", Cost: 1}
	decide := func(s Store) func() error {
		c := &Call{Hits: []Hit{hit}}
		return func() error { return s.Do(context.Background(), c) }
	}
	ping := func() error {
		f := flights.Get().(*flight)
		f.setTimeout(time.Second)
		if mine, err := pings.do(context.Background(), f); !mine || err != nil {
			return err
		}
		flights.Put(f)
		return nil
	}
	for _, callers := range []int{64, 256} {
		for _, kind := range []struct {
			name string
			ask  func() func() error
		}{
			{"engine", func() func() error { return decide(engine) }},
			{"store", func() func() error { return decide(store) }},
			{"PING", func() func() error { return ping }},
		} {
			b.Run(fmt.Sprintf("%s/%d", kind.name, callers), func(b *testing.B) {
				b.SetParallelism(callers / runtime.GOMAXPROCS(0))
				b.RunParallel(func(pb *testing.PB) {
					ask := kind.ask()
					for pb.Next() {
						if err := ask(); err != nil {
							b.Error(err)
						}
					}
				})
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
			})
		}
	}
}
