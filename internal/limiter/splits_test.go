package limiter

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// pod is a place among live pods that a test moves.
type pod struct{ live, place int }

func (p *pod) where(*Rule) (live, place int) { return p.live, p.place }

// unevenTraffic is a hundred requests as they reach ten pods.
var unevenTraffic = [10]int64{19, 0, 19, 5, 19, 0, 19, 0, 19, 0}

// spend asks for n requests one by one, and counts what is granted.
func spend(t fataler, l local, h Hit, n int64) (granted int64) {
	t.Helper()
	for range n {
		one, _, err := l.take(t.Context(), &h, 1, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		granted += one
	}
	return granted
}

func TestPartsAddUpToTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := limitOf(rapid.SampledFrom(append(algorithms, policy.Concurrency)).Draw(t, "algorithm"),
			rapid.Int64Range(0, 50).Draw(t, "requests"), time.Minute)
		l.Burst = rapid.Int64Range(1, 50).Draw(t, "burst")
		whole, live := rule(l), rapid.IntRange(1, 30).Draw(t, "live pods")
		var requests, capacity, most int64
		least := l.Requests
		for place := range live {
			mine, err := whole.partOf(live, place)
			if err != nil {
				t.Fatal(err)
			}
			requests, capacity = requests+mine.limit.Requests, capacity+mine.Capacity()
			least, most = min(least, mine.limit.Requests), max(most, mine.limit.Requests)
		}
		bucket := l.Algorithm == policy.TokenBucket
		if !bucket && (requests != l.Requests || most-least > 1) {
			t.Fatalf("the parts are %d in all, and %d to %d each", requests, least, most)
		}
		// A part without room gets no rate, and one without a rate no room.
		if bucket && (requests > l.Requests || capacity > whole.Capacity()) {
			t.Fatalf("the parts are %d requests and %d of burst in all", requests, capacity)
		}
		if enough := int64(live) <= min(l.Requests, l.Burst); bucket && enough && (requests != l.Requests || capacity != l.Burst) {
			t.Fatalf("the parts are %d requests and %d of burst in all", requests, capacity)
		}
	})
}

// The well-known weakness of equal parts: of 100 requests for a limit of 100, 55
// are let pass.
func TestSplitRefusesWhatOtherPodsHaveLeft(t *testing.T) {
	for _, a := range algorithms {
		t.Run(string(a), func(t *testing.T) {
			hit := Hit{Rule: rule(limitOf(a, 100, time.Minute)), Key: "k", Cost: 1}
			var admitted int64
			for place, requests := range unevenTraffic {
				p := &pod{live: 10, place: place}
				s := newSplits(p.where, (&clock{epoch}).time)
				admitted += spend(t, s, hit, requests)
			}
			diff(t, "admitted", admitted, 55)
		})
	}
}

func TestSplitKeepsWhatIsUsedWhenPodsComeAndGo(t *testing.T) {
	for _, a := range algorithms {
		t.Run(string(a), func(t *testing.T) {
			hit := Hit{Rule: rule(limitOf(a, 23, time.Minute)), Key: "k", Cost: 1}
			p := &pod{}
			s := newSplits(p.where, (&clock{epoch}).time)
			for _, step := range []struct {
				live, place int
				granted     int64
			}{
				{0, 0, 3}, // not known: a pod by itself
				{4, 3, 2}, // 5 of 23, 3 are used
				{4, 2, 1}, // 6
				{30, 25, 0},
				{2, 1, 5}, // 11
				{1, 0, 12},
			} {
				p.live, p.place = step.live, step.place
				n := int64(100)
				if step.live == 0 {
					n = step.granted
				}
				diff(t, fmt.Sprintf("granted to %+v", *p), spend(t, s, hit, n), step.granted)
			}
		})
	}
}

func TestSplitGrantsManyInPartAndTakesThemBack(t *testing.T) {
	hit := Hit{Rule: rule(limitOf(policy.SlidingWindow, 20, time.Minute)), Key: "k", Cost: 3, Shadow: true}
	s := newSplits((&pod{live: 2}).where, (&clock{epoch}).time)
	granted, r, err := s.take(t.Context(), &hit, 5, 0)
	if granted != 3 || err != nil || r.Allowed || r.Remaining != 1 || r.Reason != LimitExceeded {
		t.Fatalf("granted %d: %+v, %v", granted, r, err)
	}
	s.giveBack(&hit, 2)
	granted, r, err = s.take(t.Context(), &hit, 1, 0)
	if granted != 1 || err != nil || !r.Allowed || r.Remaining != 4 {
		t.Fatalf("granted %d: %+v, %v", granted, r, err)
	}
}

// Slots are held by tokens, so that such a limit needs the whole call.
func TestSplitDividesSlots(t *testing.T) {
	hit := []Hit{{Rule: rule(limitOf(policy.Concurrency, 5, time.Minute)), Key: "k", Cost: 1}}
	s := newSplits((&pod{live: 2}).where, (&clock{epoch}).time)
	for _, step := range []struct {
		op      Op
		token   string
		granted int64
	}{{Take, "a", 1}, {Take, "b", 1}, {Take, "c", 1}, {Take, "d", 0}, {Renew, "a", 1}, {Refund, "b", 1}, {Take, "d", 1}, {Peek, "e", 0}} {
		c := Call{Op: step.op, Hits: hit, Token: step.token}
		if err := s.do(&c); err != nil || c.Granted != step.granted {
			t.Fatalf("op %d of %q: granted %d, %v", step.op, step.token, c.Granted, err)
		}
	}
	if hit[0].Rule.limit.Requests != 5 {
		t.Error("the call's rule was exchanged")
	}
}

// A shadow's slots are counted like others.
func TestSplitCountsShadowSlots(t *testing.T) {
	hit := Hit{Rule: rule(limitOf(policy.Concurrency, 2, time.Minute)), Key: "k", Cost: 1, Shadow: true}
	s := newSplits((&pod{live: 2}).where, (&clock{epoch}).time)
	for _, want := range []int64{1, 0} {
		granted, r, err := splitSlots{s, fmt.Sprint("token", want)}.take(t.Context(), &hit, 1, 0)
		if granted != want || err != nil || r.Allowed != (want == 1) {
			t.Fatalf("granted %d, want %d: %+v, %v", granted, want, r, err)
		}
	}
}

func TestSplitIsExactUnderConcurrency(t *testing.T) {
	hit := Hit{Rule: rule(limitOf(policy.TokenBucket, 300, 720*time.Hour)), Key: "k", Cost: 1}
	s := newSplits((&pod{live: 3}).where, time.Now)
	var mu sync.Mutex
	var wg sync.WaitGroup
	admitted := int64(0)
	for range 8 {
		wg.Go(func() {
			n := spend(t, s, hit, 50)
			mu.Lock()
			defer mu.Unlock()
			admitted += n
		})
	}
	wg.Wait()
	diff(t, "admitted", admitted, 100)
}

func TestSplitAllocatesNothing(t *testing.T) {
	if raceDetector {
		t.Skip("pools forget")
	}
	hit := Hit{Rule: rule(limitOf(policy.SlidingWindow, 1<<40, time.Hour)), Key: "k", Cost: 1}
	s := newSplits((&pod{live: 3, place: 1}).where, time.Now)
	spend(t, s, hit, 1)
	allocations := testing.AllocsPerRun(1000, func() {
		if granted, _, err := s.take(t.Context(), &hit, 1, 0); granted != 1 || err != nil {
			t.Fatal(granted, err)
		}
	})
	if allocations > 0 {
		t.Errorf("%v allocations per decision", allocations)
	}
}

func BenchmarkSplit(b *testing.B) {
	hit := Hit{Rule: rule(limitOf(policy.SlidingWindow, 1<<50, time.Hour)), Key: "k", Cost: 1}
	s := newSplits((&pod{live: 3, place: 1}).where, time.Now)
	b.ReportAllocs()
	for b.Loop() {
		_, _, _ = s.take(b.Context(), &hit, 1, 0)
	}
}
