package limiter

import (
	"math/bits"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// These hold for both stores, since TestRedisAndMemoryAgree says that they give
// the same results.

// admission is units that were admitted at a time in µs.
type admission struct{ at, cost int64 }

// drawTraffic lets random traffic through a limit and returns what was admitted.
func drawTraffic(t *rapid.T, l Limit) []admission {
	c := &clock{epoch + rapid.Int64Range(0, l.Window.Microseconds()).Draw(t, "start")}
	m := NewMemory(c.time)
	var admitted []admission
	for range rapid.IntRange(1, 200).Draw(t, "requests") {
		c.micros += rapid.OneOf(
			rapid.SampledFrom([]int64{0, 1, l.Window.Microseconds() - 1, l.Window.Microseconds()}),
			rapid.Int64Range(0, l.Window.Microseconds()/2/max(1, l.Requests)+1),
		).Draw(t, "pause")
		cost := rapid.Int64Range(1, l.Requests+1).Draw(t, "cost")
		results, err := ask(t.Context(), m, Take, []Hit{{Rule: rule(l), Key: "k", Cost: cost}})
		if err != nil {
			t.Fatal(err)
		}
		if results[0].Allowed {
			admitted = append(admitted, admission{c.micros, cost})
		}
	}
	return admitted
}

func drawSmallLimit(t *rapid.T, a policy.Algorithm) Limit {
	l := limitOf(a, rapid.Int64Range(1, 12).Draw(t, "requests per window"), time.Duration(rapid.IntRange(1, 1000).Draw(t, "window"))*time.Millisecond)
	l.Burst = rapid.Int64Range(1, 12).Draw(t, "burst")
	return l
}

// mostIn is the most units that any stretch of a length, open at one end, has.
func mostIn(admitted []admission, length int64) (most int64) {
	for i := range admitted {
		var sum int64
		for _, a := range admitted[i:] {
			if a.at >= admitted[i].at+length {
				break
			}
			sum += a.cost
		}
		most = max(most, sum)
	}
	return most
}

func mostInAlignedWindow(admitted []admission, window int64) (most int64) {
	sums := map[int64]int64{}
	for _, a := range admitted {
		sums[a.at/window] += a.cost
		most = max(most, sums[a.at/window])
	}
	return most
}

func TestFixedWindowHoldsItsLimitInEachWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawSmallLimit(t, policy.FixedWindow)
		if n := mostInAlignedWindow(drawTraffic(t, l), l.Window.Microseconds()); n > l.Requests {
			t.Fatalf("%d in a window, limit %d", n, l.Requests)
		}
	})
}

// The published bound: less than twice the limit in any stretch of a window's
// length, and the limit in each aligned window.
func TestSlidingWindowStaysWithinItsMethod(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawSmallLimit(t, policy.SlidingWindow)
		admitted := drawTraffic(t, l)
		if n := mostInAlignedWindow(admitted, l.Window.Microseconds()); n > l.Requests {
			t.Fatalf("%d in an aligned window, limit %d", n, l.Requests)
		}
		if n := mostIn(admitted, l.Window.Microseconds()); n >= 2*l.Requests {
			t.Fatalf("%d in a window's length, limit %d", n, l.Requests)
		}
	})
}

// What the method promises of even traffic: it is held to the limit. Rounding the
// weight up may keep back one unit, and never adds one.
func TestSlidingWindowHoldsEvenTrafficToItsLimit(t *testing.T) {
	c := &clock{epoch}
	m := NewMemory(c.time)
	hit := Hit{Rule: rule(limitOf(policy.SlidingWindow, 10, time.Second)), Key: "k", Cost: 1}
	var admitted []admission
	for range 1000 {
		c.micros += 20_000 // five times the limit
		if take(t, m, hit)[0].Allowed {
			admitted = append(admitted, admission{c.micros, 1})
		}
	}
	// The first window had none before it and filled up at once.
	if n := mostIn(admitted[20:], 1_000_000); n < 9 || n > 10 {
		t.Fatalf("%d in a second, limit 10", n)
	}
}

func TestSlidingLogHoldsItsLimitInEveryStretch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawSmallLimit(t, policy.SlidingLog)
		if n := mostIn(drawTraffic(t, l), l.Window.Microseconds()); n > l.Requests {
			t.Fatalf("%d in a window's length, limit %d", n, l.Requests)
		}
	})
}

// In any stretch of t, at most burst + rate × t, without any rounding.
func TestTokenBucketHoldsBurstAndRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawSmallLimit(t, policy.TokenBucket)
		admitted := drawTraffic(t, l)
		for i := range admitted {
			sum := int64(0)
			for _, a := range admitted[i:] {
				sum += a.cost
				// (sum - burst) × window ≤ requests × t
				above, excess := bits.Mul64(uint64(max(0, sum-l.Burst)), uint64(l.Window.Microseconds()))
				earned := uint64(l.Requests * (a.at - admitted[i].at))
				if above > 0 || excess > earned {
					t.Fatalf("%d units in %d µs, burst %d and %d a %v", sum, a.at-admitted[i].at, l.Burst, l.Requests, l.Window)
				}
			}
		}
	})
}
