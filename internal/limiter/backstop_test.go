package limiter

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tallyman-dev/tallyman/internal/calendar"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

// backstopOf returns a backstop among so many live pods that owes to a store,
// which it reaches after half a second of real time at the earliest.
func backstopOf(t testing.TB, c *clock, live int) *backstop {
	b := newBackstop(NewMemory(c.time), pods(live), Events{}, c.time)
	b.debts.cancel() // it reports at its end only: the clock is the test's alone
	t.Cleanup(func() { b.close(t.Context()) })
	return b
}

// standby is a limit whose backstop admits so many units; 0 is the pod's share.
func standby(l Limit, units int64) *Rule {
	r := rule(l)
	r.backstop = units
	return r
}

func granted(b *backstop, h Hit, n int64) int64 {
	n, _ = b.take(&h, n)
	return n
}

func TestTheAllowanceIsTheLimitsOrThePodsShare(t *testing.T) {
	for _, test := range []struct {
		requests, backstop int64
		live               int
		want               int64
	}{
		{100, 0, 10, 10},
		{100, 0, 3, 34},
		{100, 0, 1, 100},
		{100, 0, 0, 100}, // nobody knows
		{3, 0, 10, 1},
		{100, 20, 10, 20},
		{100, 20, 3, 20},
		{10, 20, 3, 10}, // an override of the limit
		{0, 0, 10, 0},
		{0, 20, 1, 0},
	} {
		c := &clock{epoch}
		b := backstopOf(t, c, test.live)
		h := Hit{Rule: standby(limitOf(policy.TokenBucket, test.requests, time.Minute), test.backstop), Key: "k", Cost: 1}
		if got := granted(b, h, 1000); got != test.want {
			t.Errorf("%d requests, a backstop of %d and %d pods: %d are granted, want %d",
				test.requests, test.backstop, test.live, got, test.want)
		}
	}
}

func TestABackstopAnswersAsAStoreDoes(t *testing.T) {
	c := &clock{epoch}
	b := backstopOf(t, c, 1)
	h := Hit{Rule: standby(limitOf(policy.SlidingWindow, 100, time.Minute), 10), Key: "k"}
	c.set(20 * time.Second)
	const reset = 40 * time.Second
	for _, step := range []struct {
		cost, n, granted int64
		want             Result
	}{
		{0, 5, 5, Result{Allowed: true, Remaining: 10}},
		{4, 1, 1, Result{Allowed: true, Remaining: 6, ResetAfter: reset}},
		{7, 1, 0, Result{Reason: LimitExceeded, Remaining: 6, RetryAfter: reset, ResetAfter: reset}},
		{2, 5, 3, Result{Reason: LimitExceeded, Remaining: 0, RetryAfter: reset, ResetAfter: reset}},
		{0, 1, 1, Result{Allowed: true, ResetAfter: reset}},
		{101, 1, 0, Result{Reason: CostExceedsLimit}},
	} {
		h.Cost = step.cost
		got, r := b.take(&h, step.n)
		if got != step.granted || r != step.want {
			t.Errorf("%d of cost %d: %d are granted, %+v, want %d, %+v", step.n, step.cost, got, r, step.granted, step.want)
		}
	}
}

func TestALimitOfZeroRefusesFreeRequestsToo(t *testing.T) {
	c := &clock{epoch}
	b := backstopOf(t, c, 1)
	h := Hit{Rule: standby(limitOf(policy.FixedWindow, 0, time.Minute), 10), Key: "k"}
	if n, r := b.take(&h, 1); n != 0 || r.Reason != CostExceedsLimit {
		t.Errorf("%d are granted, %+v", n, r)
	}
}

func TestWhatTheStoreAdmittedIsNotAdmittedAgain(t *testing.T) {
	c := &clock{epoch}
	b := backstopOf(t, c, 1)
	h := Hit{Rule: standby(limitOf(policy.SlidingLog, 100, time.Minute), 10), Key: "k", Cost: 1}
	b.note(&h, 7)
	diff(t, "granted after 7 of 10", granted(b, h, 100), 3)
	b.note(&h, 50)
	diff(t, "granted after more than all", granted(b, h, 100), 0)
	b.note(&h, -54) // 6 are left
	diff(t, "granted after most was given back", granted(b, h, 100), 4)
	b.giveBack(&h, 2)
	diff(t, "granted after the backstop's own came back", granted(b, h, 100), 2)
	b.giveBack(&h, 1000)
	diff(t, "granted after all of the backstop's own came back", granted(b, h, 100), 7)
}

func TestAWindowIsThatOfTheLimit(t *testing.T) {
	berlin, err := calendar.New(calendar.Month, "Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	month := time.Date(2025, 12, 1, 0, 0, 0, 0, time.FixedZone("CET", 3600))
	for name, test := range map[string]struct {
		limit Limit
		ends  time.Duration // since the epoch
	}{
		"a multiple of its length": {limitOf(policy.TokenBucket, 100, time.Hour), time.Hour},
		"a month": {Limit{Algorithm: policy.FixedWindow, Requests: 100, Calendar: berlin},
			month.Sub(time.UnixMicro(epoch))},
	} {
		t.Run(name, func(t *testing.T) {
			c := &clock{epoch}
			c.set(10 * time.Minute)
			b := backstopOf(t, c, 10)
			h := Hit{Rule: rule(test.limit), Key: "k", Cost: 1}
			diff(t, "granted at first", granted(b, h, 100), 10)
			c.set(test.ends - time.Microsecond)
			n, r := b.take(&h, 1)
			if n != 0 || r.RetryAfter != time.Microsecond {
				t.Errorf("at the end of the window %d are granted, %+v", n, r)
			}
			c.set(test.ends)
			diff(t, "granted in the next window", granted(b, h, 100), 10)
		})
	}
}

func TestAClockThatIsSetBackBeginsNoWindow(t *testing.T) {
	c := &clock{epoch}
	b := backstopOf(t, c, 1)
	h := Hit{Rule: standby(limitOf(policy.FixedWindow, 100, time.Minute), 10), Key: "k", Cost: 1}
	diff(t, "granted", granted(b, h, 100), 10)
	c.set(-30 * time.Second)
	diff(t, "granted half a minute before", granted(b, h, 100), 0)
	c.set(-time.Hour)
	diff(t, "granted when the clock was wrong by an hour", granted(b, h, 100), 10)
}

func TestSlotsInUseAreCounted(t *testing.T) {
	c := &clock{epoch}
	b := backstopOf(t, c, 2)
	h := Hit{Rule: rule(limitOf(policy.Concurrency, 10, time.Minute)), Key: "k", Cost: 1}
	b.note(&h, 3)
	n, r := b.take(&h, 9)
	if n != 2 || r.RetryAfter != time.Second || r.ResetAfter != time.Minute {
		t.Errorf("%d of 2 slots are granted, %+v", n, r)
	}
	b.note(&h, -1)
	b.giveBack(&h, 1)
	diff(t, "granted when two requests have ended", granted(b, h, 9), 2)
	c.set(50 * time.Second)
	b.note(&h, 0)
	c.set(109 * time.Second)
	diff(t, "granted while slots are renewed", granted(b, h, 9), 0)
	c.set(169 * time.Second)
	diff(t, "granted when they were not", granted(b, h, 9), 5)
}

// C31, C37: with room for 100 keys, more in rotation get none beyond their
// allowance, and those that are known are refused as before.
func TestAFullBackstopRefusesAndForgetsNothing(t *testing.T) {
	c := &clock{epoch}
	b := backstopOf(t, c, 1)
	b.most = 100
	hit := func(i int) Hit {
		return Hit{Rule: standby(limitOf(policy.FixedWindow, 100, time.Minute), 2), Key: fmt.Sprint(i), Cost: 1}
	}
	admitted := map[int]int64{}
	for range 5 {
		for i := range 1000 {
			h := hit(i)
			n, r := b.take(&h, 1)
			admitted[i] += n
			if i >= 100 && (n != 0 || r != Result{Reason: BackstopFull, RetryAfter: time.Minute}) {
				t.Fatalf("key %d: %d are granted, %+v", i, n, r)
			}
		}
	}
	for i := range 100 {
		if admitted[i] != 2 {
			t.Errorf("key %d was admitted %d times, want 2", i, admitted[i])
		}
	}
	c.set(time.Minute)
	for i := 100; i < 200; i++ {
		diff(t, "granted to a new key in the next window", granted(b, hit(i), 5), 2)
	}
	diff(t, "granted to one more", granted(b, hit(1), 5), 0)
}

func TestABackstopForgetsKeysWhoseWindowsHaveEnded(t *testing.T) {
	c := &clock{epoch}
	b := backstopOf(t, c, 1)
	r := rule(limitOf(policy.TokenBucket, 10, time.Second))
	for i := range 10_000 {
		c.micros += 10_000 // 100 keys a window
		granted(b, Hit{Rule: r, Key: fmt.Sprint(i), Cost: 1}, 1)
	}
	if stored := sizeOf(&b.tallies); stored < 90 || stored > 200 || stored != len(b.ending) {
		t.Errorf("%d keys are known, %d of them in the heap", stored, len(b.ending))
	}
}

// Whatever comes in whatever order, no key is admitted more than its allowance by
// the backstop and the store together, other than by the store alone; and what
// is given back is at hand again.
func TestNoKeyIsAdmittedMoreThanItsAllowance(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := &clock{epoch}
		b := newBackstop(NewMemory(c.time), pods(1), Events{}, c.time)
		b.debts.cancel() // as backstopOf does
		defer b.close(t.Context())
		b.most = 3
		allowance := rapid.Int64Range(1, 10).Draw(rt, "allowance")
		rules := []*Rule{
			standby(limitOf(policy.SlidingWindow, 20, time.Second), allowance),
			standby(limitOf(policy.TokenBucket, 20, 3*time.Second), allowance),
		}
		type counted struct{ ends, noted, taken int64 }
		var model [2][4]counted
		rt.Repeat(map[string]func(*rapid.T){
			"time passes": func(rt *rapid.T) { c.micros += rapid.Int64Range(0, 2_000_000).Draw(rt, "µs") },
			"step": func(rt *rapid.T) {
				of, key := rapid.IntRange(0, 1).Draw(rt, "rule"), rapid.IntRange(0, 3).Draw(rt, "key")
				h := Hit{Rule: rules[of], Key: fmt.Sprint(of, key), Cost: rapid.Int64Range(1, 4).Draw(rt, "cost")}
				n := rapid.Int64Range(1, 4).Draw(rt, "n")
				m := &model[of][key]
				if c.micros >= m.ends {
					window := h.Rule.limit.Window.Microseconds()
					*m = counted{ends: c.micros - c.micros%window + window}
				}
				known := b.known(h.Key) != nil
				switch rapid.SampledFrom([]string{"note", "take", "give back"}).Draw(rt, "what") {
				case "note":
					b.note(&h, n)
					m.noted += n * h.Cost
				case "take":
					got, r := b.take(&h, n)
					want := min(n, max(0, allowance-m.noted-m.taken)/h.Cost)
					if r.Reason == BackstopFull {
						want = 0
						if known {
							rt.Fatalf("key %s is known, and was refused for want of room", h.Key)
						}
					}
					if m.taken += got * h.Cost; got != want {
						rt.Fatalf("%d of %d were granted, want %d: %+v", got, n, want, *m)
					}
				case "give back":
					if back := min(n, m.taken/h.Cost); back > 0 {
						b.giveBack(&h, back)
						m.taken -= back * h.Cost
					}
				}
			},
		})
	})
}

func TestConcurrentRequestsGetTheAllowanceExactly(t *testing.T) {
	b := newBackstop(NewMemory(time.Now), pods(1), Events{}, time.Now)
	defer b.close(t.Context())
	h := Hit{Rule: standby(limitOf(policy.FixedWindow, 10_000, 720*time.Hour), 700), Key: "k", Cost: 1}
	inEight := func(do func()) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 25 {
					do()
				}
			})
		}
		wg.Wait()
	}
	inEight(func() { b.note(&h, 1) })
	var admitted atomic.Int64
	inEight(func() { admitted.Add(granted(b, h, 5)) })
	if n := admitted.Load(); n != 500 {
		t.Errorf("%d were admitted beside 200, want 500", n)
	}
}

// Keys come and go at the same time, and none is counted twice.
func TestConcurrentKeysShareTheRoom(t *testing.T) {
	b := newBackstop(NewMemory(time.Now), pods(1), Events{}, time.Now)
	defer b.close(t.Context())
	b.most = 10
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 5000 {
				b.take(&Hit{Rule: standby(limitOf(policy.FixedWindow, 5, time.Millisecond), 2), Key: fmt.Sprint(i % 30), Cost: 1}, 1)
			}
		})
	}
	wg.Wait()
	if stored := sizeOf(&b.tallies); stored > 10 || stored != len(b.ending) {
		t.Errorf("%d keys are known, %d of them in the heap", stored, len(b.ending))
	}
}

func BenchmarkBackstop(b *testing.B) {
	s := newBackstop(NewMemory(time.Now), pods(3), Events{}, time.Now)
	defer s.close(b.Context())
	r := rule(limitOf(policy.TokenBucket, 1<<50, time.Hour))
	hits := make([]Hit, 256)
	for i := range hits {
		hits[i] = Hit{Rule: r, Key: fmt.Sprintf("tallyman:c:shop:orders:per-client:b3600000000:{1:0123456789abcdef%03d}", i), Cost: 1}
	}
	for name, do := range map[string]func(h *Hit){
		"note": func(h *Hit) { s.note(h, 1) },
		"take": func(h *Hit) { s.take(h, 1) },
	} {
		b.Run(name+"/keys=256", func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				do(&hits[i%len(hits)])
			}
		})
		b.Run(name+"/hot", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					do(&hits[0])
				}
			})
		})
	}
}
