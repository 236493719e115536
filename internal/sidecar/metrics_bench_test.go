package sidecar

import (
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// What counting adds to a decision, of one limit and of three.
func BenchmarkDecided(b *testing.B) {
	limit := func(name string) tallyman.LimitDecision {
		return tallyman.LimitDecision{Policy: "orders", Limit: name, Allowed: true, Counted: true, Remaining: 50, Capacity: 100}
	}
	for name, limits := range map[string][]tallyman.LimitDecision{
		"one": {limit("per-client")}, "three": {limit("per-client"), limit("per-key"), limit("all")},
	} {
		b.Run(name, func(b *testing.B) {
			way := newMetrics().ways[proxyWay]
			d := tallyman.Decision{Allowed: true, Limits: limits}
			b.ReportAllocs()
			for b.Loop() {
				way.decided(d, time.Microsecond)
			}
		})
	}
}
