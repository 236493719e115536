package limiter

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// BenchmarkLeased decides by units at hand: on one key, and on keys at random.
func BenchmarkLeased(b *testing.B) {
	for _, keys := range []uint32{1, 10_000} {
		s := &countingStore{Store: NewMemory(time.Now)}
		l := leasesOf(b, s, 1)
		r := leasedRule(limitOf(policy.TokenBucket, 60_000_000_000, time.Minute), 10)
		hits := make([]Hit, keys)
		for i := range hits {
			hits[i] = Hit{Rule: r, Key: fmt.Sprint("tallyman:c:shop:orders:per-client:t60000000:{1:", i, "}"), Cost: 1}
		}
		decide := func() {
			if n, _, err := l.take(context.Background(), &hits[rand.Uint32()%keys], 1, time.Second); n != 1 || err != nil {
				b.Errorf("%d granted, %v", n, err)
			}
		}
		for range 100 * keys {
			decide()
		}
		b.Run(fmt.Sprint(keys, " keys"), func(b *testing.B) {
			calls := s.calls.Load()
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					decide()
				}
			})
			b.ReportMetric(float64(s.calls.Load()-calls)/float64(b.N), "calls/op")
		})
	}
}

// BenchmarkLeasedRefusal is a request for a key whose limit is reached.
func BenchmarkLeasedRefusal(b *testing.B) {
	l := leasesOf(b, NewMemory(time.Now), 1)
	h := Hit{Rule: leasedRule(limitOf(policy.FixedWindow, 100, 720*time.Hour), 10), Key: "k", Cost: 1}
	for range 11 {
		grant(b, l, h, 10)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if n, _, err := l.take(context.Background(), &h, 1, time.Second); n != 0 || err != nil {
				b.Errorf("%d granted, %v", n, err)
			}
		}
	})
}
