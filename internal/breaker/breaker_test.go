package breaker_test

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tallyman-dev/tallyman/internal/breaker"
)

// world is a breaker with a clock that stands, and with waits of their full length.
type world struct {
	*breaker.Breaker
	now     time.Time
	random  float64
	asked   func()          // runs once, when the clock is asked
	changes []breaker.State // each change's new state
}

func newWorld(o breaker.Options) *world {
	w := &world{now: time.Unix(1_800_000_000, 0), random: 1}
	o.Now = func() time.Time {
		if asked := w.asked; asked != nil {
			w.asked = nil
			asked()
		}
		return w.now
	}
	o.Random = func() float64 { return w.random }
	previous := breaker.Closed
	o.OnChange = func(from, to breaker.State) {
		if from != previous || from == to || to != w.State() {
			panic("told changes are not those of the state")
		}
		previous = to
		w.changes = append(w.changes, to)
	}
	w.Breaker = breaker.New(o)
	return w
}

func (w *world) pass(d time.Duration) { w.now = w.now.Add(d) }

func (w *world) allow(t testing.TB) breaker.Call {
	t.Helper()
	call, ok := w.Allow()
	if !ok {
		t.Fatalf("refuses a call while %v", w.State())
	}
	return call
}

func (w *world) refuses(t testing.TB) {
	t.Helper()
	if _, ok := w.Allow(); ok {
		t.Fatalf("lets a call through while %v", w.State())
	}
}

func (w *world) is(t testing.TB, want breaker.State) {
	t.Helper()
	if got := w.State(); got != want {
		t.Fatalf("is %v, want %v", got, want)
	}
}

func (w *world) open(t testing.TB, failures int) {
	t.Helper()
	for range failures {
		w.is(t, breaker.Closed)
		w.allow(t).Fail()
	}
	w.is(t, breaker.Open)
	w.refuses(t)
}

func TestOpensAfterFailuresInARow(t *testing.T) {
	w := newWorld(breaker.Options{Failures: 3})
	for range 10 { // failures with successes between them do not add up
		w.allow(t).Fail()
		w.allow(t).Fail()
		w.allow(t).Cancel() // says nothing
		w.allow(t).Succeed()
	}
	w.open(t, 3)
}

func TestDefaults(t *testing.T) {
	w := newWorld(breaker.Options{})
	w.open(t, 5)
	w.pass(100*time.Millisecond - 1)
	w.refuses(t)
	w.pass(1)
	w.allow(t)
	w.pass(time.Second - 1)
	w.refuses(t)
	w.pass(1)
	w.allow(t)
}

func TestASuccessfulProbeCloses(t *testing.T) {
	w := newWorld(breaker.Options{Failures: 2, MinBackoff: time.Second})
	w.open(t, 2)
	w.pass(time.Second)
	probe := w.allow(t)
	w.is(t, breaker.HalfOpen)
	w.refuses(t) // one at a time
	probe.Succeed()
	w.open(t, 2) // from the start: all failures are needed again
	w.pass(time.Second)
	w.allow(t) // and no longer wait

	want := []breaker.State{breaker.Open, breaker.HalfOpen, breaker.Closed, breaker.Open, breaker.HalfOpen}
	if !slices.Equal(w.changes, want) {
		t.Errorf("changed to %v, want %v", w.changes, want)
	}
}

func TestWaitsDoubleWithEachFailedProbe(t *testing.T) {
	w := newWorld(breaker.Options{Failures: 1, MinBackoff: 100 * time.Millisecond, MaxBackoff: time.Second})
	w.open(t, 1)
	for _, wait := range []time.Duration{100, 200, 400, 800, 1000, 1000, 1000} {
		w.pass(wait*time.Millisecond - 1)
		w.refuses(t)
		w.pass(1)
		w.allow(t).Fail()
		w.is(t, breaker.Open)
	}
	for range 100 { // no overflow
		w.pass(time.Second)
		w.allow(t).Fail()
		w.refuses(t)
	}
}

func TestWaitsAreAtLeastHalfAndRandomBeyond(t *testing.T) {
	for random, wait := range map[float64]time.Duration{0: 500, 0.5: 750, 0.998: 999} {
		w := newWorld(breaker.Options{Failures: 1, MinBackoff: time.Second})
		w.random = random
		w.open(t, 1)
		w.pass(wait*time.Millisecond - time.Microsecond)
		w.refuses(t)
		w.pass(2 * time.Microsecond)
		w.allow(t)
	}
}

func TestAProbeThatReportsNothingIsReplaced(t *testing.T) {
	w := newWorld(breaker.Options{Failures: 1, MinBackoff: time.Millisecond, MaxBackoff: time.Second, ProbeTimeout: time.Second})
	w.open(t, 1)
	w.pass(time.Millisecond)
	lost := w.allow(t)
	w.pass(time.Second - 1)
	w.refuses(t)
	w.pass(1)
	probe := w.allow(t)
	w.refuses(t)

	lost.Succeed() // too late
	lost.Fail()
	w.is(t, breaker.HalfOpen)
	probe.Fail()
	w.pass(4*time.Millisecond - 1) // the lost one counts as failed
	w.refuses(t)
	w.pass(1)
	w.allow(t)
}

func TestACancelledProbeMakesWayForAnother(t *testing.T) {
	w := newWorld(breaker.Options{Failures: 1, MinBackoff: time.Second, MaxBackoff: time.Minute})
	w.open(t, 1)
	w.pass(time.Second)
	w.allow(t).Cancel()
	w.is(t, breaker.Open)
	w.allow(t).Fail() // at once
	w.pass(2*time.Second - 1)
	w.refuses(t) // and what was cancelled did not count as failed
	w.pass(1)
	w.allow(t)
}

func TestACallerOvertakenByTheProbe(t *testing.T) {
	for name, tc := range map[string]struct {
		report func(breaker.Call)
		state  breaker.State
		allows bool
	}{
		"that is under way": {func(breaker.Call) {}, breaker.HalfOpen, false},
		"that failed":       {breaker.Call.Fail, breaker.Open, false},
		"that succeeded":    {breaker.Call.Succeed, breaker.Closed, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(breaker.Options{Failures: 1, MinBackoff: time.Second})
			w.open(t, 1)
			w.pass(time.Second)
			// The caller has seen an open breaker and looks at the clock.
			w.asked = func() { tc.report(w.allow(t)) }
			call, ok := w.Allow()
			if ok != tc.allows {
				t.Errorf("is let through: %v, want %v", ok, tc.allows)
			}
			w.is(t, tc.state)
			if call.Fail(); ok {
				w.is(t, breaker.Open) // the call is one of the phase that began meanwhile
			}
		})
	}
}

func TestResultsOfAnotherTimeAreIgnored(t *testing.T) {
	w := newWorld(breaker.Options{Failures: 2, MinBackoff: time.Second})
	report := func(c breaker.Call) {
		before := w.State()
		c.Cancel()
		c.Succeed()
		c.Fail()
		c.Fail()
		w.is(t, before)
	}
	early := w.allow(t)
	w.open(t, 2)
	report(early)
	w.refuses(t)

	w.pass(time.Second)
	probe := w.allow(t)
	report(early)
	probe.Succeed()
	report(early)
	report(probe) // a second report of the same
	report(breaker.Call{})
	w.allow(t).Fail()
	w.is(t, breaker.Closed) // none of those failures was counted
}

// What a breaker must do, said again in the simplest way, over random histories.
func TestBehavesAsSpecified(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const failures, shortest, longest, timeout = 3, time.Second, 8 * time.Second, 5 * time.Second
		w := newWorld(breaker.Options{Failures: failures, MinBackoff: shortest, MaxBackoff: longest, ProbeTimeout: timeout})

		type call struct {
			breaker.Call
			era int
		}
		var (
			calls  []call
			era    int // results of calls of another one are void
			state  = breaker.Closed
			row    int       // failures in a row, while closed
			probes int       // since it opened
			due    time.Time // for the next probe
		)
		enter := func(next breaker.State) {
			era++
			state, row = next, 0
		}
		pick := func(t *rapid.T) (c call, current bool) {
			if len(calls) == 0 {
				t.Skip("no call was let through yet")
			}
			c = rapid.SampledFrom(calls).Draw(t, "call")
			return c, c.era == era
		}
		t.Repeat(map[string]func(*rapid.T){
			"allow": func(t *rapid.T) {
				c, ok := w.Allow()
				if want := state == breaker.Closed || !w.now.Before(due); ok != want {
					t.Fatalf("allows: %v, want %v", ok, want)
				}
				if !ok {
					return
				}
				if state != breaker.Closed {
					enter(breaker.HalfOpen)
					probes++
					due = w.now.Add(timeout)
				}
				calls = append(calls, call{c, era})
			},
			"succeed": func(t *rapid.T) {
				c, current := pick(t)
				c.Succeed()
				if current && state == breaker.HalfOpen {
					enter(breaker.Closed)
					probes = 0
				} else if current {
					row = 0
				}
			},
			"fail": func(t *rapid.T) {
				c, current := pick(t)
				c.Fail()
				if !current {
					return
				}
				row++
				if state == breaker.HalfOpen || row == failures {
					enter(breaker.Open)
					due = w.now.Add(min(shortest<<probes, longest))
				}
			},
			"cancel": func(t *rapid.T) {
				c, current := pick(t)
				c.Cancel()
				if current && state == breaker.HalfOpen {
					enter(breaker.Open)
					probes--
					due = w.now
				}
			},
			"pass": func(t *rapid.T) {
				w.pass(time.Duration(rapid.IntRange(0, 9000).Draw(t, "ms")) * time.Millisecond)
			},
			"": func(t *rapid.T) {
				if got := w.State(); got != state {
					t.Fatalf("is %v, want %v", got, state)
				}
			},
		})
	})
}

func TestConcurrentCallersProbeOneByOneAndSeeRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := breaker.New(breaker.Options{Failures: 1})
		call, _ := b.Allow()
		call.Fail()

		var down atomic.Bool
		down.Store(true)
		var probes, underWay atomic.Int64
		attempt := func() {
			call, ok := b.Allow()
			if !ok {
				return
			}
			defer call.Cancel()
			probes.Add(1)
			// As long as it is down, the breaker cannot close: all calls are probes.
			if n := underWay.Add(1); n > 1 && down.Load() {
				t.Errorf("%d probes at once", n)
			}
			time.Sleep(5 * time.Millisecond)
			underWay.Add(-1)
			if down.Load() {
				call.Fail()
			} else {
				call.Succeed()
			}
		}
		var callers sync.WaitGroup
		for range 32 {
			callers.Go(func() {
				for b.State() != breaker.Closed {
					attempt()
					time.Sleep(time.Millisecond)
				}
			})
		}
		time.Sleep(1500*time.Millisecond + time.Microsecond)
		// Waits of at most 100, 200, 400 and 800 ms, of at least half of it.
		if n := probes.Load(); n < 3 || n > 5 {
			t.Errorf("sent %d probes in 1.5 s, want 3 to 5", n)
		}
		down.Store(false)
		recovered := time.Now()
		callers.Wait()
		// The longest wait, a millisecond until somebody asks, a call and another
		// millisecond.
		if took := time.Since(recovered); took > 1010*time.Millisecond {
			t.Errorf("saw the recovery after %v", took)
		}
	})
}

func BenchmarkCall(b *testing.B) {
	closed := breaker.New(breaker.Options{})
	b.Run("callers=1", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			call, _ := closed.Allow()
			call.Succeed()
		}
	})
	b.Run("callers=64", func(b *testing.B) {
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				call, _ := closed.Allow()
				call.Succeed()
			}
		})
	})
	open := breaker.New(breaker.Options{Failures: 1, MinBackoff: time.Hour, MaxBackoff: time.Hour})
	call, _ := open.Allow()
	call.Fail()
	b.Run("open", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			open.Allow()
		}
	})
}
