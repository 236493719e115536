package limiter

import (
	"fmt"
	"testing"
	"time"

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
