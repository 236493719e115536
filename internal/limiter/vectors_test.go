package limiter

import (
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// vector is a public test of another rate limiter, as facts: what was asked,
// when, and what was answered.
type vector struct {
	ID        string
	Kind      string
	Algorithm string
	Params    numbers
	Tolerance numbers
	Steps     []vectorStep
}

type vectorStep struct {
	AtMS   int64 `json:"at_ms"`
	Op     string
	Cost   int64
	Repeat int
	Key    string
	Attrs  map[string]string
	Input  any
	Expect expectation

	Algorithm   string
	Limit       int64
	WindowMS    int64 `json:"window_ms"`
	Unit        string
	NowS        int64  `json:"now_s"`
	CountBefore *int64 `json:"count_before"`
	CountAfter  int64  `json:"count_after"`
	Shadow      bool
}

// expectation is a step's answer; a nil field was not stated.
type expectation struct {
	Allowed      *bool  `json:"-"`
	AllowedUnits *int64 `json:"allowed_units"`
	Remaining    *int64 `json:"-"`
	RetryAfterMS *int64 `json:"retry_after_ms"`
	ResetAfterMS *int64 `json:"reset_after_ms"`
	ResetAfterS  *int64 `json:"reset_after_s"`
	WindowStartS *int64 `json:"window_start_s"`
	TTLS         *int64 `json:"ttl_s"`
	IntervalMS   *int64 `json:"interval_ms"`
	// RawAllowed and RawRemaining are single values, or one for each limit.
	RawAllowed   json.RawMessage `json:"allowed"`
	RawRemaining json.RawMessage `json:"remaining"`
}

func (e *expectation) UnmarshalJSON(data []byte) error {
	type plain expectation
	if err := json.Unmarshal(data, (*plain)(e)); err != nil {
		return err
	}
	_ = json.Unmarshal(e.RawAllowed, &e.Allowed)
	_ = json.Unmarshal(e.RawRemaining, &e.Remaining)
	return nil
}

// numbers is parameters, of which only the numbers and strings are of interest.
type numbers map[string]any

func (n numbers) get(name string) int64 {
	f, _ := n[name].(float64)
	return int64(f)
}

// answered says why a vector is not run here.
var answered = map[string]string{
	"gub-05":  "contrast: a refund lifts what is left above the limit there. Here there is no public refund yet; what is given back on a cluster is clamped, see TestGivingBackMoreThanUsedClamps (C11)",
	"gub-06a": "an option to empty the bucket when a request is too large: refused requests consume nothing here",
	"gub-06b": "as gub-06a",
	"gub-11":  "refunds are not part of the store's interface in this version; giving back is tested in TestGivingBackMoreThanUsedClamps",
	"gub-19":  "calendar windows are not in this version (C13)",
	"rr-03":   "partial grants are for leases, which are not in this version; its takes and peeks are those of rr-01 and rr-02",
	"erl-08":  "a memory of refused keys is not in this version, nor is it the counting engine's",
	"erl-11":  "which limits a request has is internal/match's; no hits are admitted, see TestNoHitsAreNoResults",
	"lim-11":  "contrast: onMissingKey is internal/match's, a choice for each limit",
	"kua-01":  "contrast: reading durations is internal/policy's, which refuses what is silently 0 there",
	"ulu-01":  "the client's address is internal/match's",
	"ulu-02":  "rates are not written in one string here; internal/policy reads requests and window",
}

// special runs the vectors that are more than one limit and one key.
var special = map[string]func(t *testing.T, v vector, s Store, c *clock){
	"gub-02": runBatch, "gub-16": runConfigChange, "rr-04": runShortestWindow,
	"cell-03": runIntervals, "erl-14": runTiers,
	"lim-03": runByAttribute, "lim-06": runByAttribute, "lim-07": runZeroLimit,
}

// Every vector is run, or answered above; a new one in the file fails until it
// is either.
func TestVectorsOfOtherLimiters(t *testing.T) {
	for _, v := range readVectors(t) {
		t.Run(v.ID, func(t *testing.T) {
			reason, isAnswered := answered[v.ID]
			run, isSpecial := special[v.ID]
			switch {
			case isAnswered:
				t.Log("not run: " + reason)
				return
			case isSpecial:
			case v.Algorithm == "fixed_window_aligned":
				run = runTable
			default:
				run = runSequence
			}
			onBothStores(t, func(t *testing.T, s Store, c *clock) { run(t, v, s, c) })
		})
	}
}

func TestEveryAnswerHasAVector(t *testing.T) {
	known := map[string]bool{}
	for _, v := range readVectors(t) {
		known[v.ID] = true
	}
	for id := range answered {
		if !known[id] {
			t.Errorf("%s is answered and not in the file", id)
		}
	}
	for id := range special {
		if !known[id] {
			t.Errorf("%s has a test and is not in the file", id)
		}
	}
}

func readVectors(t *testing.T) []vector {
	data, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []vector
	if err := json.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	return vectors
}

// limit is the vector's rule. Windows that begin with the first hit are aligned
// ones here: the clock starts at the beginning of a window of any length, so
// that the two are the same.
func (v vector) limit(t *testing.T, step vectorStep) Limit {
	p := v.Params
	requests := max(p.get("rate"), p.get("limit"), step.Limit)
	millis := max(p.get("period_ms"), p.get("window_ms"), step.WindowMS)
	if p["window"] == "calendar-minute" || millis == 0 {
		millis = 60_000 // a calendar's minutes are aligned windows
	}
	switch v.Algorithm {
	case "fixed_window_first_hit", "fixed_window_calendar":
		return limitOf(policy.FixedWindow, requests, time.Duration(millis)*time.Millisecond)
	case "leaky_bucket", "gcra":
		l := limitOf(policy.TokenBucket, requests, time.Duration(millis)*time.Millisecond)
		l.Burst = requests
		if burst, ok := p["max_burst"]; ok {
			l.Requests, l.Burst = p.get("rate"), int64(burst.(float64))+1
		} else if burst := p.get("burst"); burst > 0 {
			l.Burst = burst
		}
		return l
	default:
		t.Fatalf("the vector's algorithm %q is not known, and the vector is not answered", v.Algorithm)
		return Limit{}
	}
}

func runSequence(t *testing.T, v vector, s Store, c *clock) {
	keys := map[string]string{}
	for i, step := range v.Steps {
		c.set(time.Duration(step.AtMS) * time.Millisecond)
		l := v.limit(t, step)
		if keys[step.Key] == "" {
			keys[step.Key] = keyOf(t, l)
		}
		hit := Hit{Rule: rule(l), Key: keys[step.Key], Cost: step.Cost}
		switch step.Op {
		case "take":
			for range max(1, step.Repeat) {
				checkStep(t, v, i, take(t, s, hit)[0])
			}
		case "peek", "take_at_most": // the latter with cost 0 only: rr-03 is answered
			checkStep(t, v, i, peek(t, s, hit)[0])
		case "reset":
			// Not an operation of the engine: an operator deletes the key.
			delete(keys, step.Key)
		default:
			t.Fatalf("step %d: unknown op %q", i, step.Op)
		}
	}
}

func checkStep(t *testing.T, v vector, i int, r Result) {
	t.Helper()
	want, tolerance := v.Steps[i].Expect, v.Tolerance
	near := func(what string, got time.Duration, wantMS *int64) {
		t.Helper()
		if wantMS == nil {
			return
		}
		delta := (got - time.Duration(*wantMS)*time.Millisecond).Abs()
		if delta > time.Duration(tolerance.get(what))*time.Millisecond {
			t.Fatalf("step %d: %s is %v, want %d ms", i, what, got, *wantMS)
		}
	}
	if want.Allowed != nil && r.Allowed != *want.Allowed {
		t.Fatalf("step %d: %+v, want allowed %v", i, r, *want.Allowed)
	}
	if want.AllowedUnits != nil && v.Steps[i].Cost > 0 && r.Allowed != (*want.AllowedUnits > 0) {
		t.Fatalf("step %d: %+v, want %d units", i, r, *want.AllowedUnits)
	}
	if want.Remaining != nil && r.Remaining != *want.Remaining {
		t.Fatalf("step %d: %+v, want remaining %d", i, r, *want.Remaining)
	}
	near("reset_after_ms", r.ResetAfter, want.ResetAfterMS)
	switch {
	case want.RetryAfterMS == nil:
	case *want.RetryAfterMS < 0, r.Reason == CostExceedsLimit: // rr-01 has a time for what never passes (C5)
		near("", r.RetryAfter, new(int64))
	default:
		near("retry_after_ms", r.RetryAfter, want.RetryAfterMS)
	}
	if want.ResetAfterS != nil {
		checkReset(t, v, i, r)
	}
}

// checkReset compares with a limiter that counts whole units until the reset,
// where ours counts the time: earlier by less than one unit's time.
func checkReset(t *testing.T, v vector, i int, r Result) {
	t.Helper()
	interval := time.Duration(v.Params.get("leak_every_ms")) * time.Millisecond
	early := time.Duration(*v.Steps[i].Expect.ResetAfterS)*time.Second - r.ResetAfter
	if early < 0 || early > interval {
		t.Fatalf("step %d: reset after %v, want %d s or up to %v less", i, r.ResetAfter, *v.Steps[i].Expect.ResetAfterS, interval)
	}
}

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

func runShortestWindow(t *testing.T, v vector, s Store, _ *clock) {
	l := v.limit(t, v.Steps[0])
	hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
	for i := range v.Steps[0].Repeat {
		if r := take(t, s, hit)[0]; r.Allowed != (i == 0) || r.RetryAfter > time.Millisecond {
			t.Fatalf("take %d: %+v", i, r)
		}
	}
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

var calendarUnits = map[string]time.Duration{
	"": time.Minute, "any": time.Minute, "second": time.Second, "minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour,
}

// runTable runs single observations of an aligned window. Their counts include
// refused units, which ours never do: what is left after a refusal is what was
// left before. Their near-limit and over-limit deltas are metrics, which are not
// the engine's.
func runTable(t *testing.T, v vector, s Store, c *clock) {
	for i, step := range v.Steps {
		c.micros = max(v.Params.get("now_s"), step.NowS) * 1_000_000
		unit, _ := v.Params["unit"].(string)
		if step.Unit != "" {
			unit = step.Unit
		}
		l := limitOf(policy.FixedWindow, max(v.Params.get("limit"), step.Limit, 1), calendarUnits[unit])
		hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: max(step.Cost, 1), Shadow: step.Shadow}
		switch step.Op {
		case "observe":
			checkObservation(t, s, hit, step)
		case "key", "reset":
			take(t, s, hit)
		case "peek": // erl-13: cost 0 changes nothing
			hit.Cost = 0
			diff(t, "remaining", take(t, s, hit)[0].Remaining, l.Requests)
		default:
			t.Fatalf("step %d: unknown op %q", i, step.Op)
		}
		checkWindow(t, s, c, hit, step.Expect)
	}
}

func checkObservation(t *testing.T, s Store, hit Hit, step vectorStep) {
	before := step.CountAfter - hit.Cost
	if step.CountBefore != nil {
		before = *step.CountBefore
		hit.Cost = step.CountAfter - before
	}
	earlier := hit
	limit := hit.Rule.Limit()
	wide := limit
	wide.Requests = max(before, limit.Requests)
	earlier.Rule, earlier.Cost = rule(wide), before
	take(t, s, earlier)
	r := take(t, s, hit)[0]
	// A shadow's refusal is told, and stands in nobody's way.
	allowed := step.CountAfter <= limit.Requests
	if r.Allowed != allowed || allowed && r.Remaining != *step.Expect.Remaining {
		t.Fatalf("%+v for %+v, want %v", r, hit, allowed)
	}
	if !step.Shadow && allowed != *step.Expect.Allowed {
		t.Fatalf("allowed is %v, the vector says %v", allowed, *step.Expect.Allowed)
	}
}

func checkWindow(t *testing.T, s Store, c *clock, hit Hit, want expectation) {
	t.Helper()
	left := peek(t, s, hit)[0].ResetAfter
	if want.ResetAfterS != nil {
		diff(t, "reset", left, time.Duration(*want.ResetAfterS)*time.Second)
	}
	if want.WindowStartS != nil {
		end := time.UnixMicro(c.micros).Add(left)
		diff(t, "window's start", end.Add(-hit.Rule.Limit().Window).Unix(), *want.WindowStartS)
	}
	if want.TTLS != nil && left > time.Duration(*want.TTLS)*time.Second {
		t.Fatalf("the counter stays for %v, want at most %d s", left, *want.TTLS)
	}
}
