package limiter

import (
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// Faults that others had with counting. The numbers name the rows of the
// table in docs/cases.md.

// admittedOf takes hits of cost 1 and counts who was admitted.
func admittedOf(t *testing.T, s Store, hit Hit, n int) (admitted int) {
	t.Helper()
	for range n {
		if take(t, s, hit)[0].Allowed {
			admitted++
		}
	}
	return admitted
}

// C1: around a border, a fixed window admits twice its limit, by its nature; the
// others do not.
func TestBurstsAroundAWindowsBorder(t *testing.T) {
	second := map[policy.Algorithm]int{
		policy.FixedWindow: 10, policy.SlidingWindow: 0, policy.SlidingLog: 0, policy.TokenBucket: 0,
	}
	onEveryAlgorithm(t, 10, time.Minute, func(t *testing.T, s Store, c *clock, l Limit) {
		hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
		c.set(59_900 * time.Millisecond)
		diff(t, "before the border", admittedOf(t, s, hit, 10), 10)
		c.set(60_100 * time.Millisecond)
		diff(t, "behind the border", admittedOf(t, s, hit, 10), second[l.Algorithm])
	})
}

// C3: a limit of 0 refuses everything, the first request and those without cost
// too, and divides by nothing.
func TestLimitOfZeroRefusesEverything(t *testing.T) {
	onEveryAlgorithm(t, 0, time.Minute, func(t *testing.T, s Store, c *clock, l Limit) {
		for _, cost := range []int64{0, 1, 1 << 40} {
			r := take(t, s, Hit{Rule: rule(l), Key: keyOf(t, l), Cost: cost})[0]
			diff(t, "result", r, Result{Reason: CostExceedsLimit})
		}
	})
}

// A limit lowered to 0 refuses at once, and raised again it knows what was used.
func TestLimitOfZeroForgetsNothing(t *testing.T) {
	onEveryAlgorithm(t, 10, time.Hour, func(t *testing.T, s Store, c *clock, l Limit) {
		hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 4}
		take(t, s, hit)
		none := hit
		none.Rule = rule(Limit{Algorithm: l.Algorithm, Window: l.Window, Burst: 1})
		if r := take(t, s, none)[0]; r.Allowed || r.Remaining != 0 {
			t.Fatalf("a limit of 0: %+v", r)
		}
		if r := take(t, s, hit)[0]; !r.Allowed || r.Remaining != 2 {
			t.Fatalf("back at 10: %+v", r)
		}
	})
}

// C5: what can never pass says so, and has no time to try again.
func TestCostAboveTheLimitHasItsOwnReason(t *testing.T) {
	onEveryAlgorithm(t, 5, time.Minute, func(t *testing.T, s Store, c *clock, l Limit) {
		hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 2}
		take(t, s, hit)
		hit.Cost = 6
		if r := take(t, s, hit)[0]; r.Reason != CostExceedsLimit || r.RetryAfter != 0 || r.Remaining != 3 {
			t.Fatalf("6 of 5: %+v", r)
		}
		hit.Cost = 4
		if r := take(t, s, hit)[0]; r.Reason != LimitExceeded || r.RetryAfter <= 0 || r.Remaining != 3 {
			t.Fatalf("4 of 3 left: %+v", r)
		}
	})
}

// In a call with others, a cost that can never pass keeps them all from being
// charged.
func TestCostAboveOneLimitChargesNone(t *testing.T) {
	onEveryAlgorithm(t, 5, time.Minute, func(t *testing.T, s Store, c *clock, l Limit) {
		wide := l
		wide.Requests, wide.Burst = 100, 100
		hits := []Hit{{Rule: rule(wide), Key: keyOf(t, wide), Cost: 6}, {Rule: rule(l), Key: keyOf(t, l), Cost: 6}}
		r := take(t, s, hits...)
		if !r[0].Allowed || r[0].Remaining != 100 || r[1].Reason != CostExceedsLimit || r[1].Remaining != 5 {
			t.Fatalf("%+v", r)
		}
	})
}

// C7: what has leaked between requests is not lost, however often they come.
func TestSteadyTrafficIsRefilled(t *testing.T) {
	onBothStores(t, func(t *testing.T, s Store, c *clock) {
		l := limitOf(policy.TokenBucket, 10, 30*time.Second)
		hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
		for at := time.Duration(0); at < 10*time.Minute; at += 2900 * time.Millisecond {
			c.set(at)
			if r := take(t, s, hit)[0]; !r.Allowed {
				t.Fatalf("at %v: %+v", at, r)
			}
		}
	})
}

// C9: with a burst above the requests, the burst is what can be left.
func TestBurstAboveRequests(t *testing.T) {
	onBothStores(t, func(t *testing.T, s Store, c *clock) {
		l := Limit{Algorithm: policy.TokenBucket, Requests: 10, Window: time.Minute, Burst: 20}
		hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
		diff(t, "idle", peek(t, s, hit)[0], Result{Allowed: true, Remaining: 20})
		diff(t, "one taken", take(t, s, hit)[0], Result{Allowed: true, Remaining: 19, ResetAfter: 6 * time.Second})
		c.set(time.Hour)
		diff(t, "idle again", peek(t, s, hit)[0], Result{Allowed: true, Remaining: 20})
	})
}

// C15: see runTiers, which is the same row as a vector. Here with algorithms
// mixed, and any of them refusing.
func TestRefusalChargesNobody(t *testing.T) {
	onBothStores(t, func(t *testing.T, s Store, c *clock) {
		for refusing := range algorithms {
			var hits []Hit
			for i, a := range algorithms {
				l := limitOf(a, 15, time.Hour)
				if i == refusing {
					l = limitOf(a, 14, time.Hour)
				}
				hits = append(hits, Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 13})
			}
			take(t, s, hits...)
			before := peek(t, s, hits...)
			for i := range hits {
				hits[i].Cost = 2
			}
			for i, r := range take(t, s, hits...) {
				if r.Allowed != (i != refusing) || r.Remaining != before[i].Remaining {
					t.Fatalf("%s refuses: hit %d got %+v, before it %+v", algorithms[refusing], i, r, before[i])
				}
			}
			for i := range hits {
				hits[i].Cost = 1
			}
			if !allAllowed(take(t, s, hits...)) {
				t.Fatalf("%s: a cost of 1 is refused", algorithms[refusing])
			}
		}
	})
}

// C19: limits that differ in their numbers only have counters of their own, and
// the stricter one holds.
func TestLimitsOfOneWindowAllHold(t *testing.T) {
	onEveryAlgorithm(t, 5, time.Hour, func(t *testing.T, s Store, c *clock, l Limit) {
		wide := limitOf(l.Algorithm, 10, l.Window)
		prefix := testredis.Prefix(t)
		var hits []Hit
		for name, l := range map[string]Limit{"strict": l, "wide": wide} {
			hits = append(hits, Hit{Rule: rule(l), Key: CounterKey(KeyBase(prefix, "shop", "orders", name, rule(l)), "*"), Cost: 1})
		}
		admitted := 0
		for range 12 {
			if allAllowed(take(t, s, hits...)) {
				admitted++
			}
		}
		diff(t, "admitted", admitted, 5)
	})
}

// C21: limits and costs beyond 32 bits are exact.
func TestLargeNumbersAreExact(t *testing.T) {
	for _, requests := range []int64{1 << 32, 1<<32 + 1, policy.MaxInteger} {
		onEveryAlgorithm(t, requests, time.Minute, func(t *testing.T, s Store, c *clock, l Limit) {
			if l.Algorithm == policy.SlidingLog {
				return // stores every hit and is bounded at 100,000
			}
			hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: requests - 1}
			diff(t, "remaining", take(t, s, hit)[0].Remaining, 1)
			hit.Cost = 2
			if r := take(t, s, hit)[0]; r.Allowed || r.Remaining != 1 {
				t.Fatalf("2 of 1 left: %+v", r)
			}
			hit.Cost = 1
			diff(t, "the last", take(t, s, hit)[0].Remaining, 0)
			if take(t, s, hit)[0].Allowed {
				t.Fatal("one more than the limit is admitted")
			}
		})
	}
}

// C21: a cost of 10^12 is refused and leaves the counter as it was.
func TestHugeCostChangesNothing(t *testing.T) {
	onEveryAlgorithm(t, 100, time.Minute, func(t *testing.T, s Store, c *clock, l Limit) {
		hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
		take(t, s, hit)
		before := peek(t, s, hit)
		huge := hit
		huge.Cost = 1_000_000_000_000
		if r := take(t, s, huge)[0]; r.Reason != CostExceedsLimit {
			t.Fatalf("%+v", r)
		}
		diff(t, "the counter", peek(t, s, hit), before)
	})
}

// C23: a clock that goes back gives nothing out twice, and takes nothing away.
func TestClockGoingBackGivesNothingTwice(t *testing.T) {
	onEveryAlgorithm(t, 4, time.Minute, func(t *testing.T, s Store, c *clock, l Limit) {
		hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
		c.set(70 * time.Second)
		diff(t, "at first", admittedOf(t, s, hit, 2), 2)
		for _, back := range []time.Duration{65 * time.Second, 20 * time.Second, 69 * time.Second} {
			c.set(back)
			if r := peek(t, s, hit)[0]; r.Remaining != 2 {
				t.Fatalf("back at %v: %+v", back, r)
			}
		}
		c.set(30 * time.Second)
		diff(t, "while the clock is behind", admittedOf(t, s, hit, 5), 2)
		c.set(70 * time.Second)
		diff(t, "when it has caught up", admittedOf(t, s, hit, 5), 0)
	})
}

// A clock that was far ahead does not ban anybody: what it left behind counts
// for a window, or a minute, at most.
func TestClockFarBehindStartsAnew(t *testing.T) {
	onEveryAlgorithm(t, 1, time.Second, func(t *testing.T, s Store, c *clock, l Limit) {
		hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
		c.set(24 * time.Hour)
		take(t, s, hit)
		c.set(0)
		if r := take(t, s, hit)[0]; !r.Allowed {
			t.Fatalf("a day back: %+v", r)
		}
	})
}

// So do slots whose holders crashed. One that is renewed counts again.
func TestSlotsOfAClockFarAheadCountWhenTheyAreRenewed(t *testing.T) {
	onBothStores(t, func(t *testing.T, s Store, c *clock) {
		l := limitOf(policy.Concurrency, 2, time.Second)
		hits := []Hit{{Rule: rule(l), Key: keyOf(t, l), Cost: 1}}
		left := func() int64 { return do(t, s, Call{Op: Peek, Hits: hits}).Results[0].Remaining }
		c.set(24 * time.Hour)
		for _, token := range []string{"crashed", "alive"} {
			do(t, s, Call{Hits: hits, Token: token})
		}
		c.set(24*time.Hour - time.Minute)
		diff(t, "left a minute back", left(), 0)
		c.set(0)
		diff(t, "left a day back", left(), 2)
		diff(t, "renewed", do(t, s, Call{Op: Renew, Hits: hits, Token: "alive"}).Granted, 1)
		diff(t, "left after the renewal", left(), 1)
	})
}

// Changed numbers keep what is used; a changed window or algorithm starts anew,
// since it has another key.
func TestChangedLimitKeepsWhatIsUsed(t *testing.T) {
	onEveryAlgorithm(t, 7, time.Minute, func(t *testing.T, s Store, c *clock, l Limit) {
		hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 3}
		take(t, s, hit)
		hit.Cost = 1
		for _, step := range []struct{ requests, remaining int64 }{{70, 66}, {10, 5}, {6, 0}, {100, 93}} {
			hit.Rule = rule(limitOf(l.Algorithm, step.requests, l.Window))
			if r := take(t, s, hit)[0]; !r.Allowed || r.Remaining != step.remaining {
				t.Fatalf("with %d requests: %+v, want remaining %d", step.requests, r, step.remaining)
			}
		}
	})
}

// A cost of 0 passes a full counter, and makes no new one.
func TestCostOfZeroPassesAndLeavesNothing(t *testing.T) {
	onEveryAlgorithm(t, 1, time.Minute, func(t *testing.T, s Store, c *clock, l Limit) {
		full := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
		take(t, s, full)
		full.Cost = 0
		if r := take(t, s, full)[0]; !r.Allowed || r.Remaining != 0 {
			t.Fatalf("on a full counter: %+v", r)
		}
		fresh := Hit{Rule: rule(l), Key: keyOf(t, l)}
		diff(t, "on a new counter", take(t, s, fresh)[0], Result{Allowed: true, Remaining: 1})
		fresh.Cost = 1
		peek(t, s, fresh)
		requireNoCounter(t, s, fresh.Key)
	})
}

func requireNoCounter(t *testing.T, s Store, key string) {
	t.Helper()
	switch s := s.(type) {
	case *Redis:
		diff(t, "EXISTS", command(t, s.client, "EXISTS", key), any(int64(0)))
	case *Memory:
		diff(t, "stored", s.counters[key] != nil, false)
	}
}

func TestNoHitsAreNoResults(t *testing.T) {
	onBothStores(t, func(t *testing.T, s Store, c *clock) {
		diff(t, "results", len(take(t, s)), 0)
	})
}

// Shadows are counted only with an admitted request, together or not at all, and
// refuse nobody.
func TestShadowsRefuseNobody(t *testing.T) {
	onEveryAlgorithm(t, 2, time.Minute, func(t *testing.T, s Store, c *clock, l Limit) {
		wide := l
		wide.Requests, wide.Burst = 3, 3
		enforced := Hit{Rule: rule(wide), Key: keyOf(t, wide), Cost: 1}
		narrow := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1, Shadow: true}
		broad := Hit{Rule: rule(wide), Key: keyOf(t, wide), Cost: 1, Shadow: true}
		hits := []Hit{narrow, enforced, broad}
		for i, want := range [][]int64{{1, 2, 2}, {0, 1, 1}, {0, 0, 1}, {0, 0, 1}} {
			diff(t, "remaining", remainingOf(take(t, s, hits...)), want)
			if i == 2 { // the shadow is full, the request passes
				diff(t, "the shadow", peek(t, s, narrow)[0].Reason, LimitExceeded)
			}
		}
		diff(t, "alone", take(t, s, broad)[0].Remaining, 0)
	})
}
