package limiter

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/internal/calendar"
	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// Other limiters' vectors that are more than one limit and one key, see
// vectors_test.go.

func runBatch(t *testing.T, v vector, s Store, _ *clock) {
	var hits []Hit
	for _, step := range v.Steps {
		l := v.limit(t, step)
		hits = append(hits, Hit{Rule: rule(l), Key: keyOf(t, l), Cost: step.Cost})
	}
	for i, r := range take(t, s, hits...) {
		checkStep(t, v, i, r)
	}
}

func runConfigChange(t *testing.T, v vector, s Store, _ *clock) {
	prefix := testredis.Prefix(t)
	for i, step := range v.Steps {
		changed := v
		if step.Algorithm != "" {
			changed.Algorithm = step.Algorithm
		}
		l := changed.limit(t, step)
		hit := Hit{Rule: rule(l), Key: CounterKey(KeyBase(prefix, "n", "p", "l", rule(l)), "1:a"), Cost: step.Cost}
		want := *step.Expect.Remaining
		if step.Algorithm != "" && step.Limit == 10 {
			// There a leaky bucket forgets when its limit changes, here it keeps
			// the one unit that was used.
			want--
		}
		if r := take(t, s, hit)[0]; !r.Allowed || r.Remaining != want {
			t.Fatalf("step %d: %+v, want remaining %d", i, r, want)
		}
	}
}

// runShortestWindow takes what comes back within a part of a millisecond, or
// after a time that is no whole number of them.
func runShortestWindow(t *testing.T, v vector, s Store, c *clock) {
	l := v.limit(t, v.Steps[0])
	hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
	one := (l.Window + time.Duration(l.Requests) - 1) / time.Duration(l.Requests) // rounded up
	wait := (one + time.Microsecond - 1).Truncate(time.Microsecond)
	for i := range v.Steps[0].Repeat {
		r := take(t, s, hit)[0]
		if r.Allowed != (i == 0) || i > 0 && r.RetryAfter != wait {
			t.Fatalf("take %d: %+v, want a wait of %v", i, r, wait)
		}
	}
	c.set(wait)
	diff(t, "allowed after the wait", take(t, s, hit)[0].Allowed, true)
}

// runRefundsAboveTheLimit has refunds that lift what is left above the limit
// there, and are clamped here. (C11)
func runRefundsAboveTheLimit(t *testing.T, v vector, s Store, _ *clock) {
	l := v.limit(t, v.Steps[0])
	refundAboveTheLimit(t, v, s, Hit{Rule: rule(l), Key: keyOf(t, l)})
}

func refundAboveTheLimit(t *testing.T, v vector, s Store, hit Hit) {
	t.Helper()
	full := hit.Rule.Limit().Requests
	for i, step := range v.Steps {
		switch step.Op {
		case "refund":
			hit.Cost = -step.Cost
			refund := do(t, s, Call{Op: Refund, Hits: []Hit{hit}})
			if refund.Granted != 0 || refund.Results[0].Remaining != full {
				t.Fatalf("step %d: %+v", i, refund)
			}
		case "take":
			hit.Cost = step.Cost
			if c := do(t, s, Call{Hits: []Hit{hit}}); c.Granted != 0 || c.Results[0].Reason != CostExceedsLimit {
				t.Fatalf("step %d: %d of %d are granted: %+v", i, step.Cost, full, c.Results)
			}
		case "peek":
			hit.Cost = 1
			diff(t, "remaining", peek(t, s, hit)[0].Remaining, full)
		}
	}
}

// runValidation: no window is an error here, and a limit of 0 refuses. Names are
// those of Kubernetes objects, which have one.
func runValidation(t *testing.T, v vector, s Store, _ *clock) {
	none := limitOf(policy.FixedWindow, v.Steps[0].Limit, 0)
	if _, err := NewRule(none); !errors.Is(err, ErrInvalid) {
		t.Fatalf("without a window: %v", err)
	}
	zero := limitOf(policy.FixedWindow, v.Steps[1].Limit, time.Duration(v.Steps[1].WindowMS)*time.Millisecond)
	checkStep(t, v, 1, take(t, s, Hit{Rule: rule(zero), Key: keyOf(t, zero), Cost: 1})[0])
}

// runCalendar compares where a window ends with the last millisecond before.
func runCalendar(t *testing.T, v vector, s Store, c *clock) {
	for i, step := range v.Steps {
		input := step.Input.(map[string]any)
		unit, _ := input["unit"].(string)
		if unit == "" {
			if _, err := calendar.New("Quarter", "UTC"); err == nil {
				t.Fatalf("step %d: an unknown period is none", i)
			}
			continue
		}
		windows, err := calendar.New(calendar.Period(strings.ToUpper(unit[:1])+unit[1:]), v.Params["tz"].(string))
		if err != nil {
			t.Fatal(err)
		}
		c.micros = instant(t, input["now"].(string)).UnixMicro()
		l := Limit{Algorithm: policy.FixedWindow, Requests: 1, Calendar: windows}
		hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
		want := time.UnixMilli(step.Expect.ExpireUnixMS)
		if step.Expect.ExpireUTC != "" {
			want = instant(t, step.Expect.ExpireUTC)
		}
		take(t, s, hit)
		r := take(t, s, hit)[0]
		last := c.time().Add(r.RetryAfter - time.Millisecond)
		if r.Allowed || !last.Equal(want) {
			t.Fatalf("step %d: the window of a %s ends after %v, want %v; %+v", i, unit, last.UTC(), want.UTC(), r)
		}
	}
}

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// runCounters lists the counters by peeking at them: one that has expired says
// what a new one does.
func runCounters(t *testing.T, v vector, s Store, c *clock) {
	l := v.limit(t, v.Steps[0])
	hits := map[string]Hit{}
	for i, step := range v.Steps {
		c.set(time.Duration(step.AtMS) * time.Millisecond)
		if step.Op == "list_counters" {
			for key, hit := range hits {
				want := Result{Allowed: true, Remaining: l.Requests}
				var left map[string]int64
				if json.Unmarshal(step.Expect.RawRemaining, &left) == nil {
					want.Remaining, want.ResetAfter = left[key], l.Window
				}
				diff(t, "counter "+key, peek(t, s, hit)[0], want)
			}
			continue
		}
		hits[step.Key] = Hit{Rule: rule(l), Key: keyOf(t, l), Cost: step.Cost}
		checkStep(t, v, i, take(t, s, hits[step.Key])[0])
	}
}

// runReconfiguration: numbers change and what is used is kept. Of two limits of
// one name the API allows none, and the counters of one that is deleted expire.
func runReconfiguration(t *testing.T, v vector, s Store, _ *clock) {
	l := v.limit(t, v.Steps[0])
	hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
	checkStep(t, v, 0, take(t, s, hit)[0])
	hit.Rule = rule(l)
	checkStep(t, v, 1, peek(t, s, hit)[0])
	l.Requests = v.Steps[2].Limit
	hit.Rule = rule(l)
	diff(t, "remaining of more", peek(t, s, hit)[0].Remaining, l.Requests-1)
}

func runIntervals(t *testing.T, v vector, _ Store, _ *clock) {
	windows := map[any]time.Duration{"second": time.Second, "minute": time.Minute, "2m": 2 * time.Minute, "hour": time.Hour, "day": 24 * time.Hour, "0s": 0}
	for i, step := range v.Steps {
		input := numbers(step.Input.(map[string]any))
		l := Limit{Algorithm: policy.TokenBucket, Requests: input.get("count"), Burst: 1, Window: windows[input["per"]]}
		r, err := NewRule(l)
		if step.Expect.IntervalMS == nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("step %d: %v, want ErrInvalid", i, err)
			}
			continue
		}
		diff(t, "interval", r.price(1).whole, *step.Expect.IntervalMS*1000)
	}
}

// runTiers is C15 too: a refused request charges no tier, not even the one that
// refused; the peer counts it there.
func runTiers(t *testing.T, v vector, s Store, c *clock) {
	c.micros = v.Params.get("now_s") * 1_000_000
	var hits []Hit
	for _, requests := range []int64{15, 14} {
		l := limitOf(policy.FixedWindow, requests, time.Hour)
		hits = append(hits, Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 10}) // start_counts
	}
	cost := func(n int64) []Result {
		hits[0].Cost, hits[1].Cost = n, n
		return take(t, s, hits...)
	}
	take(t, s, hits...)
	for i, want := range [][2]int64{{4, 3}, {2, 1}} {
		r := cost(v.Steps[i].Cost)
		diff(t, "remaining", [2]int64{r[0].Remaining, r[1].Remaining}, want)
	}
	r := cost(v.Steps[2].Cost)
	diff(t, "allowed", [2]bool{r[0].Allowed, r[1].Allowed}, [2]bool{true, false})
	diff(t, "remaining", [2]int64{r[0].Remaining, r[1].Remaining}, [2]int64{2, 1})
	r = cost(1)
	diff(t, "allowed", [2]bool{r[0].Allowed, r[1].Allowed}, [2]bool{true, true})
}

// runByAttribute gives each value of a request's attribute its own counter, as
// internal/match would. lim-03 has limits by method, lim-06 a key of one of two
// attributes.
func runByAttribute(t *testing.T, v vector, s Store, _ *clock) {
	keys := map[string]string{}
	for i, step := range v.Steps {
		value := step.Attrs["method"] + step.Attrs["app_id"]
		requests := v.Params.get("limit")
		if limits, ok := v.Params["limits"].([]any); ok {
			for _, l := range limits {
				if l := l.(map[string]any); l["when"] == "method=="+value {
					requests = int64(l["limit"].(float64))
				}
			}
		}
		l := limitOf(policy.FixedWindow, requests, time.Minute)
		if keys[value] == "" {
			keys[value] = keyOf(t, l)
		}
		for range max(1, step.Repeat) {
			checkStep(t, v, i, take(t, s, Hit{Rule: rule(l), Key: keys[value], Cost: 1})[0])
		}
	}
}

// runZeroLimit: without limits, or with a limit that does not match, there are
// no hits; a limit of 0 refuses.
func runZeroLimit(t *testing.T, v vector, s Store, _ *clock) {
	for range v.Steps[:2] {
		diff(t, "results", len(take(t, s)), 0)
	}
	l := limitOf(policy.FixedWindow, 0, time.Minute)
	checkStep(t, v, 2, take(t, s, Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1})[0])
}
