package limiter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// pods is a fixed number of them.
func pods(n int) Pods { return func(*Rule) (live, place int) { return n, 0 } }

// leasedRule is a limit of which at most a percentage may lie idle.
func leasedRule(l Limit, maxIdlePercent int32) *Rule {
	r := rule(l)
	r.distribution = policy.Distribution{Mode: policy.Leased, MaxIdlePercent: maxIdlePercent}
	return r
}

// leasesOf returns leases that are closed with the test, or the bubble.
func leasesOf(t testing.TB, s Store, n int) *leases {
	l := newLeases(s, pods(n), nil)
	t.Cleanup(func() { l.close(context.Background()) })
	return l
}

func grant(t fataler, l *leases, h Hit, n int64) (int64, Result) {
	t.Helper()
	granted, r, err := l.take(t.Context(), &h, n, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return granted, r
}

// left is what the shared count has left.
func left(t fataler, s Store, h Hit) int64 {
	t.Helper()
	return peek(t, s, Hit{Rule: h.Rule, Key: h.Key})[0].Remaining
}

func TestLeasedAdmitsTheLimitAndNoMore(t *testing.T) {
	for _, a := range algorithms {
		t.Run(string(a), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := leasesOf(t, NewMemory(time.Now), 1)
				h := Hit{Rule: leasedRule(limitOf(a, 100, time.Minute), 10), Key: "k", Cost: 1}
				for i := range int64(100) {
					n, r := grant(t, l, h, 1)
					if n != 1 || !r.Allowed || r.Remaining != 99-i {
						t.Fatalf("request %d: %d granted, %+v", i+1, n, r)
					}
					synctest.Wait()
				}
				n, r := grant(t, l, h, 1)
				if n != 0 || r.Allowed || r.Reason != LimitExceeded || r.Remaining != 0 || r.RetryAfter <= 0 {
					t.Fatalf("request 101: %d granted, %+v", n, r)
				}
				time.Sleep(r.RetryAfter)
				if n, r := grant(t, l, h, 1); n != 1 {
					t.Fatalf("after RetryAfter: %d granted, %+v", n, r)
				}
			})
		})
	}
}

// At hand is what lasts for a second, and no more than may lie idle.
func TestLeasedSizesFollowThePace(t *testing.T) {
	tests := map[string]struct {
		every        time.Duration
		pods         int
		atLeast, max int64
	}{
		"a fast key":                {time.Millisecond, 1, 500, 1000},
		"a fast key of 10 pods":     {time.Millisecond, 10, 80, 100},
		"a slow key":                {100 * time.Millisecond, 1, 8, 10},
		"a key that is hardly used": {time.Second, 1, 9, 10}, // a hundredth of what may
		"hardly used by 10 pods":    {time.Second, 10, 0, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := NewMemory(time.Now)
				l := leasesOf(t, m, tt.pods)
				h := Hit{Rule: leasedRule(limitOf(policy.FixedWindow, 10_000, time.Hour), 10), Key: "k", Cost: 1}
				var most int64
				for i := range int64(1000) {
					grant(t, l, h, 1)
					synctest.Wait()
					most = max(most, 10_000-(i+1)-left(t, m, h))
					time.Sleep(tt.every)
				}
				if most < tt.atLeast || most > tt.max {
					t.Fatalf("%d were idle, want %d..%d", most, tt.atLeast, tt.max)
				}
			})
		})
	}
}

// A few requests that come at once are no pace.
func TestLeasedTakesLittleAheadForABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(time.Now)
		l := leasesOf(t, m, 1)
		h := Hit{Rule: leasedRule(limitOf(policy.FixedWindow, 10_000, time.Hour), 10), Key: "k", Cost: 1}
		for range 5 {
			grant(t, l, h, 1)
			synctest.Wait()
		}
		if idle := 9_995 - left(t, m, h); idle > 10 {
			t.Fatalf("%d are idle after 5 requests", idle)
		}
	})
}

// leaseSome has a fast key take units ahead of its need from a limit of 10,000,
// and returns how many were spent. Some are at hand then.
func leaseSome(t *testing.T, l *leases, m Store, h Hit) (spent int64) {
	t.Helper()
	before := left(t, m, h)
	for range 30 {
		n, _ := grant(t, l, h, 1)
		spent += n
		synctest.Wait()
	}
	if before-left(t, m, h) <= spent {
		t.Fatal("nothing is at hand")
	}
	return spent
}

func TestLeasedGivesBackWhatIsNotSpent(t *testing.T) {
	ways := map[string]func(t *testing.T, l *leases){
		"when idle":   func(*testing.T, *leases) { time.Sleep(2*lifetime + tidyEvery) },
		"when closed": func(t *testing.T, l *leases) { l.close(t.Context()) },
	}
	for way, end := range ways {
		for _, a := range algorithms {
			t.Run(fmt.Sprint(way, "/", a), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := NewMemory(time.Now)
					l := leasesOf(t, m, 1)
					h := Hit{Rule: leasedRule(limitOf(a, 10_000, 720*time.Hour), 10), Key: "k", Cost: 1}
					spent := leaseSome(t, l, m, h)
					end(t, l)
					synctest.Wait()
					diff(t, "left in the shared count", left(t, m, h), 10_000-spent)
				})
			})
		}
	}
}

func TestLeasedDecidesStillWhenClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(time.Now)
		l := leasesOf(t, m, 1)
		h := Hit{Rule: leasedRule(limitOf(policy.FixedWindow, 10_000, time.Hour), 10), Key: "k", Cost: 1}
		spent := leaseSome(t, l, m, h)
		l.close(t.Context())
		for range 10 {
			n, _ := grant(t, l, h, 1)
			spent += n
		}
		diff(t, "left in the shared count", left(t, m, h), 10_000-spent)
	})
}

// Units are spent in the window that counted them, or not at all.
func TestLeasedUnitsEndWithTheirWindow(t *testing.T) {
	for _, a := range []policy.Algorithm{policy.FixedWindow, policy.SlidingWindow} {
		t.Run(string(a), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const window = 10 * time.Second
				m := NewMemory(time.Now)
				s := &countingStore{Store: m}
				l := leasesOf(t, s, 1)
				h := Hit{Rule: leasedRule(limitOf(a, 10_000, window), 10), Key: "k", Cost: 1}
				border := time.Now().Truncate(window).Add(window)
				time.Sleep(time.Until(border.Add(-10 * time.Millisecond)))
				leaseSome(t, l, m, h)
				time.Sleep(time.Until(border) - time.Nanosecond)
				calls := s.calls.Load()
				grant(t, l, h, 1)
				diff(t, "calls just before the border", s.calls.Load()-calls, 0)

				time.Sleep(time.Nanosecond)
				for range 100 {
					grant(t, l, h, 1)
				}
				l.close(t.Context())
				diff(t, "units that the new window counts", m.counters[h.Key].state.used, 100)
			})
		})
	}
}

// A window that began with a request ends where the shared count says.
func TestLeasedKnowsTheEndOfAWindowOfTheFirstRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(time.Now)
		l := leasesOf(t, m, 1)
		limit := limitOf(policy.FixedWindow, 100, 10*time.Second)
		limit.FirstRequest = true
		h := Hit{Rule: leasedRule(limit, 50), Key: "k", Cost: 1}
		time.Sleep(3 * time.Second)
		start := time.Now()
		admitted := 0
		for time.Since(start) < 20*time.Second {
			n, _ := grant(t, l, h, 1)
			admitted += int(n)
			if time.Since(start) < 10*time.Second && admitted > 100 {
				t.Fatalf("%d were admitted in the first window", admitted)
			}
			time.Sleep(9 * time.Millisecond)
		}
		diff(t, "admitted in two windows", admitted, 200)
	})
}

// What a crashed pod had at hand stays counted.
func TestLeasedIsNotOverAfterACrash(t *testing.T) {
	for _, a := range algorithms {
		t.Run(string(a), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := NewMemory(time.Now)
				h := Hit{Rule: leasedRule(limitOf(a, 1000, 720*time.Hour), 20), Key: "k", Cost: 1}
				crashed := leasesOf(t, m, 2)
				var admitted int64
				for range 100 {
					n, _ := grant(t, crashed, h, 1)
					admitted += n
					synctest.Wait()
				}
				crashed.byKey.clear()
				survivor := leasesOf(t, m, 2)
				for range 1000 {
					n, _ := grant(t, survivor, h, 1)
					admitted += n
					synctest.Wait()
				}
				if admitted > 1000 || admitted < 900 {
					t.Fatalf("%d were admitted, want 900..1000", admitted)
				}
			})
		})
	}
}

func TestLeasedGrantsManyInPart(t *testing.T) {
	tests := map[string]struct{ used, cost, n, want int64 }{
		"units at idle's bound": {used: 96, cost: 1, n: 10, want: 4},
		"more than may be idle": {used: 80, cost: 1, n: 50, want: 20},
		"of a cost":             {used: 91, cost: 2, n: 5, want: 4},
		"none":                  {used: 100, cost: 1, n: 10, want: 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := NewMemory(time.Now)
				l := leasesOf(t, m, 1)
				h := Hit{Rule: leasedRule(limitOf(policy.FixedWindow, 100, time.Hour), 10), Key: "k", Cost: tt.cost}
				take(t, m, Hit{Rule: h.Rule, Key: h.Key, Cost: tt.used})
				n, r := grant(t, l, h, tt.n)
				diff(t, "granted", n, tt.want)
				if r.Allowed || r.Reason != LimitExceeded || r.RetryAfter <= 0 {
					t.Fatalf("the last: %+v", r)
				}
			})
		})
	}
}

// Many at once get what is at hand as well as what the shared count has left.
func TestLeasedGrantsManyAllThatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(time.Now)
		l := leasesOf(t, m, 1)
		h := Hit{Rule: leasedRule(limitOf(policy.SlidingLog, 10_000, time.Hour), 1), Key: "k", Cost: 1}
		spent := leaseSome(t, l, m, h)
		h.Cost = 2
		n, r := grant(t, l, h, 10_000)
		diff(t, "granted", n, (10_000-spent)/2)
		if r.Allowed || r.Remaining != 0 {
			t.Fatalf("the last: %+v", r)
		}
	})
}

// A cost above what may lie idle is taken from the shared count, and from what is
// at hand where that has not enough.
func TestLeasedTakesLargeCostsAsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(time.Now)
		s := &countingStore{Store: m}
		l := leasesOf(t, s, 1)
		rule := leasedRule(limitOf(policy.FixedWindow, 10_000, time.Hour), 1)
		small, large := Hit{Rule: rule, Key: "k", Cost: 1}, Hit{Rule: rule, Key: "k", Cost: 200}
		leaseSome(t, l, m, small)
		calls := s.calls.Load()
		for range 49 {
			if n, _ := grant(t, l, large, 1); n != 1 {
				t.Fatal("a large cost was refused")
			}
		}
		diff(t, "calls for 49 requests", s.calls.Load()-calls, 49)

		// 9,830 are spent and some are at hand; 170 can be had from both.
		large.Cost = 170
		if n, r := grant(t, l, large, 1); n != 1 || r.Remaining != 0 {
			t.Fatalf("all that is left: %d granted, %+v", n, r)
		}
		if n, r := grant(t, l, small, 1); n != 0 {
			t.Fatalf("one more: %d granted, %+v", n, r)
		}
	})
}

func TestLeasedRefusesACostThatExceedsTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := leasesOf(t, NewMemory(time.Now), 1)
		h := Hit{Rule: leasedRule(limitOf(policy.TokenBucket, 100, time.Hour), 50), Key: "k", Cost: 1}
		grant(t, l, h, 1)
		for range 2 { // with room, and in a drought
			h.Cost = 101
			if n, r := grant(t, l, h, 1); n != 0 || r.Reason != CostExceedsLimit {
				t.Fatalf("%d granted, %+v", n, r)
			}
			h.Cost = 1
			grant(t, l, h, 100)
		}
		h.Cost = 0
		if n, r := grant(t, l, h, 1); n != 1 || !r.Allowed {
			t.Fatalf("a cost of 0: %d granted, %+v", n, r)
		}
	})
}

// Where nothing may lie idle, every request is asked for as with Exact.
func TestLeasedLeavesSmallLimitsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(time.Now)
		l := leasesOf(t, m, 4)
		h := Hit{Rule: leasedRule(limitOf(policy.TokenBucket, 30, time.Hour), 10), Key: "k", Cost: 1}
		for i := range int64(30) {
			grant(t, l, h, 1)
			diff(t, "left", left(t, m, h), 29-i)
		}
		if n, r := grant(t, l, h, 1); n != 0 || r.RetryAfter != 2*time.Minute {
			t.Fatalf("%d granted, %+v", n, r)
		}
	})
}

// Where too little may lie idle for a lease, each request is asked for, but not when
// the shared count has just refused one.
func TestLeasedRemembersTheRefusalOfTheVeryRequest(t *testing.T) {
	for _, a := range algorithms {
		synctest.Test(t, func(t *testing.T) {
			t.Log(a)
			s := &countingStore{Store: NewMemory(time.Now), before: func(*Call) { time.Sleep(time.Millisecond) }}
			l := leasesOf(t, s, 1)
			h := Hit{Rule: leasedRule(limitOf(a, 5, time.Minute), 10), Key: "k", Cost: 1}
			do(t, s, Call{Hits: []Hit{{Rule: h.Rule, Key: h.Key, Cost: 5}}})
			calls := s.calls.Load()
			for range 10 {
				grant(t, l, h, 1)
			}
			diff(t, "calls", s.calls.Load()-calls, 1)
		})
	}
}

// A flood of refused requests does not reach the shared count, whatever they
// cost, and one of a smaller cost is not refused with them.
func TestLeasedRemembersRefusals(t *testing.T) {
	for _, maxIdle := range []int32{1, 10} {
		for _, a := range algorithms {
			t.Run(fmt.Sprint(maxIdle, "/", a), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &countingStore{Store: NewMemory(time.Now)}
					l := leasesOf(t, s, 1)
					h := Hit{Rule: leasedRule(limitOf(a, 50, time.Minute), maxIdle), Key: "k", Cost: 30}
					grant(t, l, h, 1)
					refuse := func(cost int64) Result {
						h.Cost = cost
						n, r := grant(t, l, h, 1)
						if n != 0 || r.Reason != LimitExceeded || r.Remaining != 20 || r.RetryAfter <= 0 {
							t.Fatalf("a cost of %d: %d granted, %+v", cost, n, r)
						}
						return r
					}
					first := refuse(21)
					calls := s.calls.Load()
					diff(t, "the second answer", refuse(21), first)
					larger := refuse(25)
					diff(t, "calls for refusals", s.calls.Load()-calls, 0)

					time.Sleep(larger.RetryAfter)
					if n, r := grant(t, l, h, 1); n != 1 {
						t.Fatalf("a cost of 25 after RetryAfter: %d granted, %+v", n, r)
					}
				})
			})
		}
	}
}

func TestLeasedGrantsWhatCostsLessThanWhatItRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := leasesOf(t, NewMemory(time.Now), 1)
		h := Hit{Rule: leasedRule(limitOf(policy.FixedWindow, 100, time.Hour), 10), Key: "k", Cost: 90}
		grant(t, l, h, 1)
		for _, tt := range []struct{ cost, want int64 }{{50, 0}, {5, 1}, {6, 0}, {5, 1}, {1, 0}} {
			h.Cost = tt.cost
			if n, r := grant(t, l, h, 1); n != tt.want {
				t.Fatalf("a cost of %d: %d granted, %+v", tt.cost, n, r)
			}
		}
	})
}

// While the store fails, units at hand are spent: they are counted already.
func TestLeasedSpendsWhatIsAtHandWhileTheStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(time.Now)
		s := &countingStore{Store: m}
		l := leasesOf(t, s, 1)
		h := Hit{Rule: leasedRule(limitOf(policy.FixedWindow, 10_000, time.Hour), 1), Key: "k", Cost: 1}
		spent := leaseSome(t, l, m, h)
		atHand := 10_000 - left(t, m, h) - spent

		s.down.Store(true)
		calls := s.calls.Load()
		for range atHand {
			grant(t, l, h, 1)
			synctest.Wait()
		}
		// Once ahead of need, and not again and again.
		diff(t, "calls", s.calls.Load()-calls, 1)
		if n, _, err := l.take(t.Context(), &h, 1, time.Second); n != 0 || !errors.Is(err, errDown) {
			t.Fatalf("with nothing at hand: %d granted, %v", n, err)
		}
		s.down.Store(false)
		if n, _ := grant(t, l, h, 1); n != 1 {
			t.Fatal("refused when the store was back")
		}
	})
}

func TestLeasedCallerLeaves(t *testing.T) {
	tests := map[string]struct {
		cancelled, waits time.Duration
		want             error
	}{
		"when its time is over": {cancelled: time.Second, waits: 10 * time.Millisecond, want: context.DeadlineExceeded},
		"when its context ends": {cancelled: time.Millisecond, waits: time.Millisecond, want: context.Canceled},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := NewMemory(time.Now)
				s := &countingStore{Store: m, before: func(*Call) { time.Sleep(20 * time.Millisecond) }}
				l := leasesOf(t, s, 1)
				h := Hit{Rule: leasedRule(limitOf(policy.FixedWindow, 1000, time.Hour), 10), Key: "k", Cost: 1}
				ctx, cancel := context.WithCancel(t.Context())
				defer time.AfterFunc(tt.cancelled, cancel).Stop()
				began := time.Now()
				if n, _, err := l.take(ctx, &h, 1, 10*time.Millisecond); n != 0 || !errors.Is(err, tt.want) {
					t.Fatalf("%d granted, %v", n, err)
				}
				diff(t, "waited", time.Since(began), tt.waits)
				// Its unit came later, and serves the next.
				time.Sleep(20 * time.Millisecond)
				grant(t, l, h, 1)
				diff(t, "left", left(t, m, h), 999)
			})
		})
	}
}

// The units of many who have left are given back, but for what may lie idle.
func TestLeasedKeepsLittleOfWhatLeaversAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(time.Now)
		s := &countingStore{Store: m, before: func(c *Call) {
			if c.Op == Take {
				time.Sleep(20 * time.Millisecond)
			}
		}}
		l := leasesOf(t, s, 1)
		h := Hit{Rule: leasedRule(limitOf(policy.FixedWindow, 1000, time.Hour), 1), Key: "k", Cost: 1}
		for range 50 {
			go func() { _, _, _ = l.take(t.Context(), &h, 1, 30*time.Millisecond) }()
			synctest.Wait()
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		// The first was served; the others left before their answer came.
		if n := left(t, m, h); n < 999-10 {
			t.Fatalf("%d are left", n)
		}
	})
}

// Units that are too few for those who ask are not kept for longer by asking.
func TestLeaseLivesNoLongerByAnAnswerWithoutUnits(t *testing.T) {
	r := leasedRule(limitOf(policy.TokenBucket, 100, time.Hour), 10)
	e := newLease("k", 0)
	e.rule = r
	deal := func(granted int64, now moment) *hand {
		e.deal(question{rule: r, units: 5, sent: now}, &Call{Granted: granted, Results: []Result{{}}}, 1, 10, now)
		return &e.hand
	}
	for i, tt := range []struct {
		granted, left int64
		now, until    moment
	}{
		{granted: 3, left: 3, now: 0, until: lifetime},
		{granted: 0, left: 3, now: lifetime / 2, until: lifetime},
		{granted: 1, left: 4, now: lifetime / 2, until: lifetime * 3 / 2},
		{granted: 0, left: 0, now: lifetime * 3 / 2, until: lifetime * 5 / 2},
	} {
		h := deal(tt.granted, tt.now)
		if h.left() != tt.left || h.until.Load() != tt.until {
			t.Fatalf("answer %d: %d units at hand until %v, want %d until %v", i+1, h.left(), h.until.Load(), tt.left, tt.until)
		}
	}
}

// All who wait for a key are served by one call, in the order in which they came.
func TestLeasedServesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(time.Now)
		s := &countingStore{Store: m, before: func(*Call) { time.Sleep(time.Millisecond) }}
		l := leasesOf(t, s, 1)
		r := leasedRule(limitOf(policy.FixedWindow, 100, time.Hour), 10)
		take(t, m, Hit{Rule: r, Key: "k", Cost: 84})
		var got [5]int64
		var wg sync.WaitGroup
		for i, cost := range []int64{1, 5, 5, 6, 4} { // 15 units after the first
			wg.Go(func() { got[i], _ = grant(t, l, Hit{Rule: r, Key: "k", Cost: cost}, 1) })
			synctest.Wait()
		}
		wg.Wait()
		diff(t, "granted", got, [5]int64{1, 1, 1, 0, 1})
		diff(t, "calls", s.calls.Load(), 2)
	})
}

func TestLeasedFollowsAChangedRule(t *testing.T) {
	tests := map[string]struct{ was, is int64 }{
		"less": {10_000, 5_000},
		"more": {10_000, 20_000},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := NewMemory(time.Now)
				l := leasesOf(t, m, 1)
				h := Hit{Rule: leasedRule(limitOf(policy.FixedWindow, tt.was, time.Hour), 10), Key: "k", Cost: 1}
				admitted := leaseSome(t, l, m, h)
				h.Rule = leasedRule(limitOf(policy.FixedWindow, tt.is, time.Hour), 10)
				for range tt.is {
					n, _ := grant(t, l, h, 1)
					admitted += n
					synctest.Wait()
				}
				diff(t, "admitted", admitted, tt.is)
			})
		})
	}
}

func TestLeasedForgetsADroughtWhenTheRuleChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := leasesOf(t, NewMemory(time.Now), 1)
		h := Hit{Rule: leasedRule(limitOf(policy.FixedWindow, 100, time.Hour), 10), Key: "k", Cost: 1}
		for range 10 {
			grant(t, l, h, 11)
		}
		if n, _ := grant(t, l, h, 1); n != 0 {
			t.Fatal("the limit is not reached")
		}
		h.Rule = leasedRule(limitOf(policy.FixedWindow, 101, time.Hour), 10)
		if n, _ := grant(t, l, h, 1); n != 1 {
			t.Fatal("refused by what the old rule's count said")
		}
	})
}

func TestLeasedGiveBackUndoesATake(t *testing.T) {
	for _, maxIdle := range []int32{1, 50} { // to the shared count, to what is at hand
		t.Run(fmt.Sprint(maxIdle), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := NewMemory(time.Now)
				l := leasesOf(t, m, 1)
				h := Hit{Rule: leasedRule(limitOf(policy.FixedWindow, 100, time.Hour), maxIdle), Key: "k", Cost: 3}
				for range 100 {
					if n, _ := grant(t, l, h, 4); n != 4 {
						t.Fatal("refused")
					}
					l.giveBack(&h, 4)
					synctest.Wait()
				}
				l.close(t.Context())
				diff(t, "left", left(t, m, h), 100)
			})
		})
	}
}

func TestLeasedKeepsNoMoreOfWhatComesBackThanMayLieIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory(time.Now)
		l := leasesOf(t, m, 1)
		h := Hit{Rule: leasedRule(limitOf(policy.FixedWindow, 10_000, time.Hour), 1), Key: "k", Cost: 1}
		spent := leaseSome(t, l, m, h)
		if n, _ := grant(t, l, h, 150); n != 150 {
			t.Fatal("refused")
		}
		l.giveBack(&h, 150)
		synctest.Wait()
		if idle := 10_000 - spent - left(t, m, h); idle > 100 {
			t.Fatalf("%d are idle", idle)
		}
		l.close(t.Context())
		diff(t, "left", left(t, m, h), 10_000-spent)
	})
}

func TestLeasedForgetsKeysThatAreIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := leasesOf(t, NewMemory(time.Now), 1)
		r := leasedRule(limitOf(policy.TokenBucket, 1000, time.Hour), 10)
		for i := range 10_000 {
			grant(t, l, Hit{Rule: r, Key: fmt.Sprint(i), Cost: 1}, 1)
			time.Sleep(time.Millisecond)
		}
		n := l.byKey.size()
		// Those of a lifetime and of the time between two looks.
		if n < 4900 || n > 5300 {
			t.Fatalf("%d keys are known", n)
		}
	})
}

// Four pods want four times the limit: what is not to be had is not asked for.
func TestLeasedAsksSeldomWhenTheLimitIsReached(t *testing.T) {
	for _, a := range algorithms {
		for _, known := range []int{4, 1} {
			t.Run(fmt.Sprintf("%s/%d pods are known", a, known), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &countingStore{Store: NewMemory(time.Now)}
					h := Hit{Rule: leasedRule(limitOf(a, 1000, time.Second), 10), Key: "k", Cost: 1}
					var admitted atomic.Int64
					var wg sync.WaitGroup
					began := time.Now()
					for range 4 {
						l := leasesOf(t, s, known)
						wg.Go(func() {
							for time.Since(began) < 5*time.Second {
								n, _ := grant(t, l, h, 1)
								admitted.Add(n)
								time.Sleep(time.Millisecond)
							}
						})
					}
					wg.Wait()
					n, calls := admitted.Load(), float64(s.calls.Load())
					want := int64(5000)
					if a == policy.TokenBucket {
						want = 6000
					}
					if n > want || n < want*leastPercent(a)/100 {
						t.Errorf("%d were admitted, want %d", n, want)
					}
					if most := map[int]float64{4: 0.2, 1: 0.25}[known]; calls > most*float64(n) {
						t.Errorf("%d were admitted by %v calls", n, calls)
					}
				})
			})
		}
	}
}

// leastPercent is what is admitted of a limit that is reached. With SlidingLog a
// unit's time begins when it is leased, and what a SlidingWindow loses at a border
// weighs on the next window too.
func leastPercent(a policy.Algorithm) int64 {
	if a == policy.SlidingLog || a == policy.SlidingWindow {
		return 95
	}
	return 97
}

// Pods that want 100, 50, 25 and 10 % of the limit get it nearly all.
func TestLeasedLosesLittleOfASteadyUnevenLoad(t *testing.T) {
	for _, a := range algorithms {
		t.Run(string(a), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := NewMemory(time.Now)
				h := Hit{Rule: leasedRule(limitOf(a, 1000, time.Second), 10), Key: "k", Cost: 1}
				var admitted atomic.Int64
				var wg sync.WaitGroup
				began := time.Now()
				for _, perSecond := range []time.Duration{1000, 500, 250, 100} {
					l := leasesOf(t, m, 4)
					wg.Go(func() {
						for time.Since(began) < 10*time.Second {
							n, _ := grant(t, l, h, 1)
							admitted.Add(n)
							time.Sleep(time.Second / perSecond)
						}
					})
				}
				wg.Wait()
				if n := admitted.Load(); n < 10_000*leastPercent(a)/100 {
					t.Errorf("%d were admitted of 10000", n)
				}
			})
		})
	}
}

// 100 requests over 10 pods with an uneven split: each limited to 10, they admit
// 55; sharing one count, all but what may lie idle.
func TestLeasedAdmitsAnUnevenSplit(t *testing.T) {
	split := []int{1, 2, 3, 4, 5, 40, 30, 5, 5, 5}
	for _, a := range algorithms {
		t.Run(string(a), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := NewMemory(time.Now)
				h := Hit{Rule: leasedRule(limitOf(a, 100, time.Hour), 10), Key: "k", Cost: 1}
				var admitted int64
				for _, requests := range split {
					l := leasesOf(t, m, 10)
					for range requests {
						n, _ := grant(t, l, h, 1)
						admitted += n
					}
					synctest.Wait()
				}
				if admitted < 90 || admitted > 100 {
					t.Fatalf("%d were admitted, want 90..100", admitted)
				}
			})
		})
	}
}

// However many ask at the same time, the limit is reached and not exceeded.
func TestLeasedAdmitsConcurrentRequestsExactly(t *testing.T) {
	for _, a := range algorithms {
		t.Run(string(a), func(t *testing.T) {
			const limit = 20_000
			m := NewMemory(time.Now)
			h := Hit{Rule: leasedRule(limitOf(a, limit, 720*time.Hour), 5), Key: "k", Cost: 1}
			var admitted atomic.Int64
			var wg sync.WaitGroup
			var all []*leases
			for range 4 {
				l := leasesOf(t, m, 4)
				all = append(all, l)
				for i := range 4 {
					wg.Go(func() {
						h, n := h, int64(i/2+1)
						h.Cost = int64(i%2 + 1)
						for range limit / 8 {
							granted, _ := grant(t, l, h, n)
							admitted.Add(granted * h.Cost)
						}
					})
				}
			}
			wg.Wait()
			for _, l := range all {
				l.close(t.Context())
			}
			// All are spent, or were given back.
			diff(t, "admitted and left", admitted.Load()+left(t, m, h), limit)
			if admitted.Load() < limit-limit/20 {
				t.Fatalf("%d were admitted", admitted.Load())
			}
		})
	}
}

// traffic is what a property's pods do, drawn before the bubble, so that a failure
// is made small.
type traffic struct {
	limit   Limit
	maxIdle int32
	pods    int
	latency time.Duration
	steps   []trafficStep
}

type trafficStep struct {
	pod     int
	cost, n int64
	pause   time.Duration
	crash   bool
}

func drawLeasedTraffic(t *rapid.T) traffic {
	a := rapid.SampledFrom([]policy.Algorithm{policy.FixedWindow, policy.SlidingWindow}).Draw(t, "algorithm")
	milliseconds := func(from, to int, name string) time.Duration {
		return time.Duration(rapid.IntRange(from, to).Draw(t, name)) * time.Millisecond
	}
	tr := traffic{
		limit:   limitOf(a, rapid.Int64Range(1, 500).Draw(t, "requests"), milliseconds(20, 2000, "window")),
		maxIdle: rapid.Int32Range(1, 50).Draw(t, "maxIdlePercent"),
		pods:    rapid.IntRange(1, 5).Draw(t, "pods"),
		latency: milliseconds(0, 10, "latency"),
	}
	for range rapid.IntRange(1, 150).Draw(t, "requests") {
		tr.steps = append(tr.steps, trafficStep{
			pod:   rapid.IntRange(0, tr.pods-1).Draw(t, "pod"),
			cost:  rapid.Int64Range(1, 4).Draw(t, "cost"),
			n:     rapid.Int64Range(1, 8).Draw(t, "n"),
			pause: milliseconds(0, rapid.SampledFrom([]int{5, 300}).Draw(t, "long"), "pause"),
			crash: rapid.IntRange(0, 20).Draw(t, "crash") == 0,
		})
	}
	return tr
}

// run returns what was admitted at hand, and the most units that lay idle. What
// waits for the shared count is decided there, as with Exact, on a side of a
// window's border that nobody else knows.
func (tr *traffic) run(t *testing.T) (admitted []admission, idle int64) {
	s := &countingStore{Store: NewMemory(time.Now), before: func(*Call) { time.Sleep(tr.latency) }}
	all := make([]*leases, tr.pods)
	for i := range all {
		all[i] = leasesOf(t, s, tr.pods)
	}
	h := Hit{Rule: leasedRule(tr.limit, tr.maxIdle), Key: "k"}
	for _, step := range tr.steps {
		h.Cost = step.cost
		came := time.Now()
		granted, _ := grant(t, all[step.pod], h, step.n)
		if time.Now().Equal(came) {
			admitted = append(admitted, admission{came.UnixMicro(), granted * step.cost})
		}
		idle = max(idle, idleIn(all))
		time.Sleep(step.pause)
		idle = max(idle, idleIn(all))
		if step.crash {
			all[step.pod].byKey.clear()
		}
	}
	return admitted, idle
}

func idleIn(all []*leases) (idle int64) {
	for _, l := range all {
		for _, e := range l.byKey.all() {
			idle += e.hand.left()
		}
	}
	return idle
}

// Random traffic through several pods, of which some crash.
func TestLeasedHoldsItsLimitInEachWindow(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tr := drawLeasedTraffic(rt)
		var admitted []admission
		var idle int64
		synctest.Test(t, func(t *testing.T) { admitted, idle = tr.run(t) })
		if n := mostInAlignedWindow(admitted, tr.limit.Window.Microseconds()); n > tr.limit.Requests {
			rt.Fatalf("%d in a window, limit %d", n, tr.limit.Requests)
		}
		if most := tr.limit.Requests * int64(tr.maxIdle) / 100; idle > most {
			rt.Fatalf("%d units were idle, of which there may be %d", idle, most)
		}
	})
}
