package limiter

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tallyman-dev/tallyman/internal/calendar"
	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// Redis and the reference give the same results, to the microsecond, whatever
// the limits, the costs, the changes of limits and the steps of the clock.
func TestRedisAndMemoryAgree(t *testing.T) {
	client := testredis.Shared(t).Client(t)
	rapid.Check(t, func(rt *rapid.T) {
		c := &clock{rapid.SampledFrom([]int64{0, epoch, epoch - 1, 1 << 51}).Draw(rt, "start")}
		memory := NewSimulatedMemory(c.time)
		tr := &trace{t: rt, clock: c, latest: c.micros, memory: memory, limits: drawLimits(rt), prefix: testredis.Prefix(t)}
		tr.redis = NewRedis(client, RedisOptions{
			Now: func() int64 { return c.micros },
			Hooks: Hooks{Corrupt: func(key string) {
				if !tr.wentBack {
					rt.Errorf("%s is called corrupt", key)
				}
			}},
		})
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			tr.step()
		}
	})
}

// trace is a random run of two stores.
type trace struct {
	t      *rapid.T
	clock  *clock
	memory *Memory
	redis  *Redis
	limits []Limit
	prefix string
	// wentBack says that the clock has once been behind its latest time by more
	// than what is waited for.
	wentBack bool
	latest   int64
}

func (tr *trace) step() {
	switch rapid.IntRange(0, 16).Draw(tr.t, "step") {
	case 0, 1, 2:
		tr.moveClock()
	case 3:
		tr.changeLimit()
	case 4:
		tr.compare(Call{Op: Peek, Hits: tr.hits(), Count: tr.count()})
	case 5, 6:
		tr.compare(Call{Op: Take, Hits: tr.hits(), Count: tr.count(), Token: tr.token()})
	case 7, 8:
		tr.compare(Call{Op: Refund, Hits: tr.hits(), Count: tr.count(), Token: tr.token()})
	case 9:
		tr.compare(Call{Op: Charge, Hits: tr.hits(), Count: tr.count(), Token: tr.token()})
	case 10, 11:
		tr.compare(Call{Op: Reserve, Hits: tr.hits(), Token: tr.token()})
	case 12:
		tr.compare(Call{Op: Settle, Hits: tr.hits(), Token: tr.token()})
	case 13:
		tr.compare(Call{Op: Renew, Hits: tr.hits(), Token: tr.token()})
	case 14:
		tr.compare(Call{Op: Reset, Hits: tr.hits()})
	default:
		tr.take(tr.hits())
	}
}

func (tr *trace) count() int64 {
	return rapid.OneOf(rapid.Int64Range(0, 5), rapid.Int64Range(0, 10_000), units(0)).Draw(tr.t, "count")
}

func (tr *trace) token() string {
	return rapid.SampledFrom([]string{"a", "b", "c"}).Draw(tr.t, "token")
}

func (tr *trace) take(hits []Hit) {
	before := tr.remaining(hits)
	results := tr.compare(Call{Op: Take, Hits: hits, Token: tr.token()}).Results
	after := tr.remaining(hits)
	fits := map[bool]bool{false: true, true: true} // by Shadow
	for i, r := range results {
		fits[hits[i].Shadow] = fits[hits[i].Shadow] && r.Allowed
	}
	fits[true] = fits[true] && fits[false]
	for i, h := range hits {
		want := before[i]
		if fits[h.Shadow] {
			want = max(0, want-h.Cost)
		}
		// A slot that the token holds already is not taken again.
		if after[i] != want && !h.Rule.holdsSlots() {
			tr.t.Fatalf("hit %d of %+v: remaining %d became %d, want %d; results %+v", i, hits, before[i], after[i], want, results)
		}
		tr.checkRetry(h, results[i])
	}
}

// checkRetry tries the times around RetryAfter.
func (tr *trace) checkRetry(h Hit, r Result) {
	if h.Rule.holdsSlots() {
		return // its RetryAfter is a guess
	}
	if r.Allowed || r.Reason == CostExceedsLimit {
		if r.RetryAfter != 0 {
			tr.t.Fatalf("%+v for %+v has a RetryAfter", r, h)
		}
		return
	}
	now := tr.clock.micros
	defer func() { tr.clock.micros = now }()
	for _, early := range []int64{0, 1} {
		tr.clock.micros = now + r.RetryAfter.Microseconds() - early
		if tr.clock.micros >= 1<<53-1 {
			return
		}
		again := tr.compare(Call{Op: Peek, Hits: []Hit{h}}).Results
		if again[0].Allowed != (early == 0) {
			tr.t.Fatalf("%+v was told to retry after %v; %d µs before that it got %+v", h, r.RetryAfter, early, again[0])
		}
	}
}

func (tr *trace) remaining(hits []Hit) []int64 {
	var left []int64
	for _, r := range peek(tr.t, tr.memory, hits...) {
		left = append(left, r.Remaining)
	}
	return left
}

func (tr *trace) compare(c Call) Call {
	want, got := c, c
	if err := tr.memory.Do(tr.t.Context(), &want); err != nil {
		tr.t.Fatal(err)
	}
	if err := tr.redis.Do(tr.t.Context(), &got); err != nil {
		tr.t.Fatal(err)
	}
	if want.Granted != got.Granted || !slices.Equal(want.Results, got.Results) {
		tr.t.Fatalf("op %d of %d × %+v, token %q, at %d:\nmemory: %d of %+v\nredis:  %d of %+v",
			c.Op, c.Count, tr.describe(c.Hits), c.Token, tr.clock.micros, want.Granted, want.Results, got.Granted, got.Results)
	}
	return got
}

func (tr *trace) describe(hits []Hit) (text []string) {
	for _, h := range hits {
		text = append(text, fmt.Sprintf("%+v at %d, shadow %v", h.Rule.Limit(), h.Cost, h.Shadow))
	}
	return text
}

func (tr *trace) hits() []Hit {
	var hits []Hit
	for i, l := range tr.limits {
		if rapid.Bool().Draw(tr.t, "hit") {
			hits = append(hits, Hit{
				Rule:   rule(l),
				Key:    CounterKey(KeyBase(tr.prefix, "n", "p", fmt.Sprint(i), rule(l)), "1:a"),
				Cost:   drawCost(tr.t, l),
				Shadow: rapid.IntRange(0, 3).Draw(tr.t, "shadow") == 0,
			})
		}
	}
	return hits
}

func (tr *trace) moveClock() {
	l := rapid.SampledFrom(tr.limits).Draw(tr.t, "whose window")
	window := rule(l).lasts(tr.clock.micros)
	step := rapid.OneOf(
		rapid.SampledFrom([]int64{0, 1, window / 10, window - 1, window, window + 1, 2 * window, tr.untilBorder(l)}),
		rapid.SampledFrom([]int64{-1, -window / 3, -window, -3 * window, -minute, -2 * minute}),
		rapid.Int64Range(0, window),
	).Draw(tr.t, "clock")
	// The clock's range is that in which all times are exact in Lua.
	tr.clock.micros = min(max(0, tr.clock.micros+step), 1<<51)
	tr.latest = max(tr.latest, tr.clock.micros)
	tr.wentBack = tr.wentBack || tr.clock.micros < tr.latest-minute
}

// untilBorder is the time until the next border of a limit's windows.
func (tr *trace) untilBorder(l Limit) int64 {
	if l.Calendar != nil {
		return l.Calendar.Around(tr.clock.micros)[2] - tr.clock.micros
	}
	window := l.Window.Microseconds()
	return window - tr.clock.micros%window
}

// changeLimit changes the numbers of a limit, which keep its counter.
func (tr *trace) changeLimit() {
	l := &tr.limits[rapid.IntRange(0, len(tr.limits)-1).Draw(tr.t, "which limit")]
	l.drawNumbers(tr.t)
}

func drawLimits(t *rapid.T) []Limit {
	return rapid.SliceOfN(rapid.Custom(drawLimit), 1, 5).Draw(t, "limits")
}

func drawLimit(t *rapid.T) Limit {
	l := Limit{
		Algorithm: rapid.SampledFrom(append(algorithms, policy.Concurrency)).Draw(t, "algorithm"),
		Window: time.Millisecond * time.Duration(rapid.OneOf(
			rapid.SampledFrom([]int64{1, 7, 10, 1000, 60_000, 3_600_000, 86_400_000, 30 * 86_400_000, 45 * 365 * 86_400_000}),
			rapid.Int64Range(1, 10_000_000),
		).Draw(t, "window")),
	}
	if l.Algorithm == policy.FixedWindow {
		switch rapid.SampledFrom([]string{"aligned", "anchored", "calendar"}).Draw(t, "windows") {
		case "anchored":
			l.FirstRequest = true
		case "calendar":
			l.Calendar, l.Window = drawCalendar(t), 0
		}
	}
	l.drawNumbers(t)
	return l
}

func (l *Limit) drawNumbers(t *rapid.T) {
	l.Requests = units(0).Draw(t, "requests")
	l.Burst = units(1).Draw(t, "burst")
	switch l.Algorithm {
	case policy.SlidingLog:
		l.Requests = min(l.Requests, policy.MaxSlidingLogRequests)
	case policy.Concurrency:
		l.Requests = min(l.Requests, 100) // each unit is an entry
	}
}

// drawCalendar draws from zones whose clocks are set at different times, Lord
// Howe's by half an hour, and Apia's once by a whole day.
func drawCalendar(t *rapid.T) Calendar {
	period := rapid.SampledFrom([]calendar.Period{
		calendar.Minute, calendar.Hour, calendar.Day, calendar.Week, calendar.Month, calendar.Year,
	}).Draw(t, "period")
	zone := rapid.SampledFrom([]string{"UTC", "Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia"}).Draw(t, "zone")
	windows, err := calendar.New(period, zone)
	if err != nil {
		t.Fatal(err)
	}
	return windows
}

// units are mostly small numbers, with those among the rest at which arithmetic
// goes wrong.
func units(least int64) *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.Int64Range(least, 20),
		rapid.Int64Range(least, 10_000),
		rapid.SampledFrom([]int64{least, 1<<31 - 1, 1 << 32, 1<<32 + 1, 1 << 52, 1<<52 + 1, policy.MaxInteger - 1, policy.MaxInteger}),
		rapid.Int64Range(least, policy.MaxInteger),
	)
}

func drawCost(t *rapid.T, l Limit) int64 {
	return rapid.OneOf(
		rapid.Int64Range(0, 3),
		rapid.SampledFrom([]int64{1, l.Requests / 3, l.Requests - 1, l.Requests, l.Requests + 1, l.Burst / 2, l.Burst, l.Burst + 1}),
		rapid.SampledFrom([]int64{1_000_000_000_000, policy.MaxInteger, math.MaxInt64}),
	).Filter(func(cost int64) bool { return cost >= 0 }).Draw(t, "cost")
}
