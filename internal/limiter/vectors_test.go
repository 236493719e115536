package limiter

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
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
	Node   string
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
	ExpireUnixMS int64  `json:"expire_unix_ms"`
	ExpireUTC    string `json:"expire_utc"`
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
	"gub-06a": "contrast: an option there empties the bucket when a request is too large. Refused requests consume nothing here, see TestCostAboveTheLimitHasItsOwnReason",
	"gub-06b": "as gub-06a",
	"cell-04": "contrast: a script has no compare-and-set that could lose. A store that fails is the failure policy's, see TestEngineFollowsTheFailurePolicy",
	"erl-09":  "contrast: keys are joined there without escaping. Here they are injective, see FuzzKeysAreInjective",
	"erl-12":  "contrast: the TTL has no jitter here, and is not longer than the window, see TestCountersExpireWithTheirWindow",
	"lim-11":  "contrast: what becomes of a request without a key is each limit's choice, see TestARequestThatLacksAKeyIsSharedSkippedOrDenied",
	"kua-01":  "contrast: what is silently 0 there is refused here by those who read durations, see TestADurationInAnotherFormIsAnError",
	"kua-02":  "not of the engine: policies have no gateways to inherit from; those that select a pod all count",
	"kua-03":  "as kua-02",
	"kua-04":  "as kua-02",
	"kua-05":  "as kua-02",
	"ulu-01":  "the client's address is found where requests are matched, see TestVectorUlu01",
	"ulu-02":  "contrast: a rate is not one string here but requests and a window, see TestADurationIsReadAsGEP2257WritesIt",
}

// special runs the vectors that are more than one limit and one key.
var special = map[string]func(t *testing.T, v vector, s Store, c *clock){
	"gub-02": runBatch, "gub-05": runRefundsAboveTheLimit, "gub-12": runValidation,
	"gub-16": runConfigChange, "gub-19": runCalendar,
	"rr-04": runShortestWindow, "thr-02": runShortestWindow, "cell-03": runIntervals, "erl-14": runTiers,
	"lim-03": runByAttribute, "lim-06": runByAttribute, "lim-07": runZeroLimit,
	"lim-08": runCounters, "lim-09": runCounters, "lim-10": runReconfiguration,
}

// distributed runs the vectors of several nodes, and those in which a node does
// without the store.
var distributed = map[string]func(t *testing.T, v vector){
	"gub-13": runNodes, "gub-14": runGreedyNodes, "gub-15": runNodesRefund, "lim-12": runAlternatingNodes,
	"erl-08": runRefusalMemory, "erl-11": runWithoutLimits,
}

// Every vector is run, or answered above; a new one in the file fails until it
// is either.
func TestVectorsOfOtherLimiters(t *testing.T) {
	for _, v := range readVectors(t) {
		t.Run(v.ID, func(t *testing.T) {
			if reason, isAnswered := answered[v.ID]; isAnswered {
				t.Log("not run: " + reason)
				return
			}
			if run := distributed[v.ID]; run != nil {
				run(t, v)
				return
			}
			run := special[v.ID]
			switch {
			case run != nil:
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
	for id := range distributed {
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
		case "take_at_most":
			checkStep(t, v, i, takeAtMost(t, v, i, s, hit))
		case "peek":
			checkStep(t, v, i, peek(t, s, hit)[0])
		case "refund":
			hit.Cost = -step.Cost
			checkStep(t, v, i, do(t, s, Call{Op: Refund, Hits: []Hit{hit}}).Results[0])
		case "reset":
			// Not an operation of the engine: an operator deletes the key.
			delete(keys, step.Key)
		default:
			t.Fatalf("step %d: unknown op %q", i, step.Op)
		}
	}
}

// takeAtMost takes as many units as there are of a step's cost. Where it got one
// it was not refused.
func takeAtMost(t *testing.T, v vector, i int, s Store, hit Hit) Result {
	t.Helper()
	cost := hit.Cost
	if hit.Cost = 1; cost == 0 {
		return peek(t, s, hit)[0]
	}
	call := do(t, s, Call{Hits: []Hit{hit}, Count: cost})
	diff(t, "units", call.Granted, *v.Steps[i].Expect.AllowedUnits)
	r := call.Results[0]
	if call.Granted > 0 {
		r.Allowed, r.RetryAfter = true, 0
	}
	return r
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
