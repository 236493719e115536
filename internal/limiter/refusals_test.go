package limiter

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

const ms = int64(time.Millisecond)

// refused is an answer of the store.
func refused(retry time.Duration) Result {
	return Result{Reason: LimitExceeded, Remaining: 2, RetryAfter: retry, ResetAfter: 3 * retry}
}

func hitOf(a policy.Algorithm, cost int64) Hit {
	return Hit{Rule: rule(limitOf(a, 10, time.Minute)), Key: "k", Cost: cost}
}

func TestARefusedKeyIsAnsweredUntilItCanSucceed(t *testing.T) {
	r := newRefusals()
	h := hitOf(policy.TokenBucket, 3)
	// Asked at 100 ms, answered at 104 ms, and the store may have decided at once.
	r.remember(&h, refused(50*time.Millisecond), 100*ms, 104*ms)
	for at, want := range map[int64]Result{
		104 * ms:   refused(50 * time.Millisecond),
		134 * ms:   {Reason: LimitExceeded, Remaining: 2, RetryAfter: 20 * time.Millisecond, ResetAfter: 120 * time.Millisecond},
		150*ms - 1: {Reason: LimitExceeded, Remaining: 2, RetryAfter: 4*time.Millisecond + 1, ResetAfter: 104*time.Millisecond + 1},
	} {
		got, known := r.lookup(&h, at)
		if !known || got != want {
			t.Errorf("after %v: %+v, %v, want %+v", time.Duration(at), got, known, want)
		}
	}
	if got, known := r.lookup(&h, 150*ms); known {
		t.Errorf("when it can succeed: %+v", got)
	}
}

func TestAShortRefusalDoesNotEndALongOne(t *testing.T) {
	r := newRefusals()
	long, short := hitOf(policy.FixedWindow, 1), hitOf(policy.FixedWindow, 1)
	short.Key = "another"
	r.remember(&long, refused(500*time.Millisecond), 0, ms)
	r.remember(&short, refused(50*time.Millisecond), 0, ms)
	if _, known := r.lookup(&long, 400*ms); !known {
		t.Error("it is not known any more")
	}
}

func TestTheStoreIsAskedAgainEachSecond(t *testing.T) {
	r := newRefusals()
	h := hitOf(policy.FixedWindow, 1)
	r.remember(&h, refused(time.Hour), 0, ms)
	got, known := r.lookup(&h, 999*ms)
	if want := time.Hour - 998*time.Millisecond; !known || got.RetryAfter != want {
		t.Errorf("within a second: %+v, %v", got, known)
	}
	if _, known := r.lookup(&h, 1000*ms); known {
		t.Error("a second later it is still answered")
	}
}

func TestWhatIsNotRemembered(t *testing.T) {
	allowed := refused(time.Minute)
	allowed.Allowed = true
	tooLarge := refused(time.Minute)
	tooLarge.Reason = CostExceedsLimit
	for name, test := range map[string]struct {
		algorithm policy.Algorithm
		result    Result
	}{
		"an admission":                     {policy.TokenBucket, allowed},
		"a cost that can never succeed":    {policy.TokenBucket, tooLarge},
		"a wait that is over in a moment":  {policy.TokenBucket, refused(10*time.Millisecond + 999*time.Microsecond)},
		"a wait that was over by the time": {policy.TokenBucket, refused(5 * time.Millisecond)},
		"a slot, which may be free soon":   {policy.Concurrency, refused(time.Second)},
	} {
		r := newRefusals()
		h := hitOf(test.algorithm, 1)
		r.remember(&h, test.result, 0, 10*ms)
		if got, known := r.lookup(&h, 10*ms); known {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestARefusalIsForItsKeyRuleAndCost(t *testing.T) {
	r := newRefusals()
	h := hitOf(policy.TokenBucket, 3)
	r.remember(&h, refused(50*time.Millisecond), 0, 0)
	for name, change := range map[string]func(h *Hit){
		"another key":                  func(h *Hit) { h.Key = "other" },
		"the rule of a changed policy": func(h *Hit) { h.Rule = rule(h.Rule.Limit()) }, // C39
		"a smaller cost":               func(h *Hit) { h.Cost = 2 },
		"a cost above the limit":       func(h *Hit) { h.Cost = 11 },
	} {
		other := h
		change(&other)
		if got, known := r.lookup(&other, ms); known {
			t.Errorf("%s: %+v", name, got)
		}
	}
	h.Shadow = true
	if _, known := r.lookup(&h, ms); !known {
		t.Error("a shadow of the same key is not known")
	}
}

// When a larger cost fits is known of a bucket, which fills steadily. With the
// others it is not; when the counter is full again, it fits.
func TestALargerCostIsRefusedUntilItFitsForCertain(t *testing.T) {
	for a, want := range map[policy.Algorithm]time.Duration{
		policy.TokenBucket:   12*time.Second + 40*time.Millisecond, // 6 s a unit
		policy.SlidingWindow: 140 * time.Millisecond,
		policy.SlidingLog:    140 * time.Millisecond,
		policy.FixedWindow:   140 * time.Millisecond,
	} {
		r := newRefusals()
		h := hitOf(a, 3)
		r.remember(&h, refused(50*time.Millisecond), 0, 0)
		h.Cost = 5
		got, known := r.lookup(&h, 10*ms)
		if !known || got.RetryAfter != want || got.ResetAfter != 140*time.Millisecond {
			t.Errorf("%s: %+v, %v", a, got, known)
		}
	}
}

func TestUnitsGivenBackAreNoticed(t *testing.T) {
	r := newRefusals()
	h := hitOf(policy.SlidingLog, 1)
	r.remember(&h, refused(time.Second), 0, ms)
	r.forget(h.Key, 10*ms)
	if got, known := r.lookup(&h, 11*ms); known {
		t.Errorf("remembered from before: %+v", got)
	}
	r.remember(&h, refused(time.Second), 9*ms, 12*ms)
	if got, known := r.lookup(&h, 12*ms); known {
		t.Errorf("asked before, answered after: %+v", got)
	}
	r.remember(&h, refused(time.Second), 11*ms, 13*ms)
	r.forget(h.Key, 5*ms) // told late
	if _, known := r.lookup(&h, 13*ms); !known {
		t.Error("what was asked after that is not known")
	}
}

// However many keys are refused, each is answered as it was or not at all.
func TestRefusalsAreNeverMixedUp(t *testing.T) {
	r := newRefusals()
	h := hitOf(policy.TokenBucket, 1)
	known := 0
	for i := range 4 * refusalBuckets {
		h.Key = fmt.Sprint(i)
		r.remember(&h, refused(time.Duration(i+1)*time.Second), 0, 0)
	}
	for i := range 4 * refusalBuckets {
		h.Key = fmt.Sprint(i)
		got, ok := r.lookup(&h, 0)
		if ok && got.RetryAfter != time.Duration(i+1)*time.Second {
			t.Fatalf("key %d is answered %+v", i, got)
		}
		if ok {
			known++
		}
	}
	if known < refusalBuckets {
		t.Errorf("%d refusals of %d places are known", known, 2*refusalBuckets)
	}
}

// Two keys of one bucket keep their places, and the newest of many has one.
func TestABucketKeepsTwoKeys(t *testing.T) {
	var b refusalBucket
	held := func() string {
		var keys string
		for i := range b.places {
			if e := b.places[i].Load(); e != nil {
				keys += e.key
			}
		}
		return keys
	}
	for _, step := range []struct {
		key        string
		until, now int64
		want       string
	}{
		{"a", 100, 0, "a"},
		{"a", 110, 0, "a"},
		{"b", 100, 0, "ab"},
		{"c", 130, 50, "ac"},
		{"d", 200, 120, "dc"},
		{"c", 250, 120, "dc"},
	} {
		b.put(&refusedHit{key: step.key, until: step.until}, step.now)
		diff(t, "keys after "+step.key, held(), step.want)
	}
}

// A store that is asked only when memory does not know decides as one that is
// always asked: no hit is refused that would be admitted. A time to try again can
// be too early only when others have taken units since it was told.
func TestMemoryOfRefusalsChangesNoDecision(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a := rapid.SampledFrom(algorithms).Draw(rt, "algorithm")
		l := limitOf(a, rapid.Int64Range(1, 8).Draw(rt, "requests"), 2*time.Second)
		h := Hit{Rule: rule(l), Key: "k"}
		c := &clock{epoch}
		asked, always := NewMemory(c.time), NewMemory(c.time)
		r := newRefusals()
		taken := false
		for range rapid.IntRange(1, 60).Draw(rt, "calls") {
			c.micros += rapid.Int64Range(0, 700_000).Draw(rt, "pause")
			h.Cost = rapid.Int64Range(1, 9).Draw(rt, "cost")
			want := take(rt, always, h)[0]
			now := c.micros * 1000
			got, known := r.lookup(&h, now)
			if !known {
				got = take(rt, asked, h)[0]
				r.remember(&h, got, now, now)
				taken = got.Allowed || taken && got.Reason != LimitExceeded
			}
			early := got.RetryAfter < want.RetryAfter && (!known || !taken)
			if got.Allowed != want.Allowed || got.Reason != want.Reason || early {
				rt.Fatalf("%s: cost %d gets %+v (from memory: %v), want %+v", a, h.Cost, got, known, want)
			}
		}
	})
}

func TestRefusalsAreSafeForConcurrentUse(t *testing.T) {
	r := newRefusals()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			h := hitOf(policy.TokenBucket, int64(i+1))
			for n := range int64(2000) {
				r.remember(&h, refused(time.Second), n, n)
				if got, known := r.lookup(&h, n); known && got.Reason != LimitExceeded {
					t.Errorf("%+v", got)
				}
				r.forget(h.Key, n/2)
			}
		})
	}
	wg.Wait()
}

func BenchmarkRefusalLookup(b *testing.B) {
	r := newRefusals()
	base := time.Now()
	hits := make([]Hit, 256)
	for i := range hits {
		hits[i] = Hit{Rule: rule(limitOf(policy.TokenBucket, 10, time.Minute)), Cost: 1,
			Key: fmt.Sprintf("tallyman:c:shop:orders:per-client:b60000000:{1:0123456789abcdef%03d}", i)}
		r.remember(&hits[i], refused(time.Minute), 1<<60, 1<<60)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		_ = time.Since(base) // the clock is read once for each decision
		if _, known := r.lookup(&hits[i%len(hits)], 1<<60); !known && i < len(hits) {
			b.Fatal("forgotten")
		}
	}
}
