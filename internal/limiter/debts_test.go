package limiter

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// faultyStore is a store with faults that a test can change.
type faultyStore struct {
	Store
	// down refuses calls; deaf carries them out and loses the reply.
	down, deaf atomic.Bool
	calls      atomic.Int64
	mostAtOnce atomic.Int64
	atOnce     atomic.Int64
	// takes is how long a call takes, a time.Duration.
	takes atomic.Int64
}

func (s *faultyStore) Do(ctx context.Context, c *Call) error {
	s.calls.Add(1)
	n := s.atOnce.Add(1)
	defer s.atOnce.Add(-1)
	for {
		most := s.mostAtOnce.Load()
		if n <= most || s.mostAtOnce.CompareAndSwap(most, n) {
			break
		}
	}
	select {
	case <-time.After(time.Duration(s.takes.Load())):
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.down.Load() {
		return errDown
	}
	err := s.Store.Do(ctx, c)
	if s.deaf.Load() {
		return errDown
	}
	return err
}

// indebted runs a test with a backstop that owes to a faulty store, in a bubble
// whose time is the clock. The test ends with all goroutines.
func indebted(t *testing.T, test func(t *testing.T, b *backstop, s *faultyStore, unreported *atomic.Int64)) {
	synctest.Test(t, func(t *testing.T) {
		var unreported atomic.Int64
		s := &faultyStore{Store: NewMemory(time.Now)}
		events := Events{Unreported: func(units int64) { unreported.Add(units) }}
		b := newBackstop(s, pods(1), events, time.Now)
		defer b.close(t.Context())
		test(t, b, s, &unreported)
	})
}

// chargedTo is what the store counted for a hit's key.
func chargedTo(t *testing.T, s *faultyStore, h Hit) int64 {
	h.Cost = 0
	return h.Rule.Capacity() - peek(t, s.Store, h)[0].Remaining
}

func TestWhatABackstopAdmittedIsReported(t *testing.T) {
	for _, a := range algorithms {
		t.Run(string(a), func(t *testing.T) {
			indebted(t, func(t *testing.T, b *backstop, s *faultyStore, unreported *atomic.Int64) {
				h := Hit{Rule: standby(limitOf(a, 100, 24*time.Hour), 50), Key: "k", Cost: 3}
				take(t, s.Store, h)
				s.down.Store(true)
				b.note(&h, 1) // by the store: not owed
				diff(t, "granted", granted(b, h, 10), 10)
				b.giveBack(&h, 2)
				time.Sleep(time.Minute)
				diff(t, "used while the store is down", chargedTo(t, s, h), 3)
				s.down.Store(false)
				time.Sleep(reportPause)
				diff(t, "used when it is back", chargedTo(t, s, h), 3+8*3)
				calls := s.calls.Load()
				time.Sleep(time.Hour)
				if n := s.calls.Load(); n != calls || unreported.Load() != 0 {
					t.Errorf("%d calls afterwards, %d units unreported", n-calls, unreported.Load())
				}
			})
		})
	}
}

func TestALostReplyIsNotChargedTwice(t *testing.T) {
	indebted(t, func(t *testing.T, b *backstop, s *faultyStore, unreported *atomic.Int64) {
		h := Hit{Rule: standby(limitOf(policy.FixedWindow, 100, 24*time.Hour), 50), Key: "k", Cost: 1}
		s.deaf.Store(true)
		granted(b, h, 7)
		time.Sleep(5 * time.Second)
		granted(b, h, 5) // while the 7 are being tried
		time.Sleep(5 * time.Second)
		diff(t, "used", chargedTo(t, s, h), 7)
		s.deaf.Store(false)
		time.Sleep(2 * reportPause)
		diff(t, "used when replies come again", chargedTo(t, s, h), 12)
		diff(t, "unreported", unreported.Load(), 0)
	})
}

func TestUnitsThatCannotBeChargedAreTold(t *testing.T) {
	for name, test := range map[string]struct {
		before func(t *testing.T, b *backstop, s *faultyStore, h Hit)
		want   int64
	}{
		"their window has ended": {func(_ *testing.T, b *backstop, s *faultyStore, h Hit) {
			s.down.Store(true)
			granted(b, h, 7)
			time.Sleep(time.Hour)
			s.down.Store(false)
		}, 7},
		"more are admitted in the next window": {func(_ *testing.T, b *backstop, s *faultyStore, h Hit) {
			s.down.Store(true)
			granted(b, h, 7)
			time.Sleep(h.Rule.limit.Window)
			granted(b, h, 5)
			s.down.Store(false)
		}, 7},
		"others have used the limit up": {func(t *testing.T, b *backstop, s *faultyStore, h Hit) {
			granted(b, h, 7)
			h.Cost = 97
			take(t, s.Store, h)
		}, 4},
		"more keys owe than can": {func(_ *testing.T, b *backstop, _ *faultyStore, h Hit) {
			b.debts.most = 1
			granted(b, h, 7)
			h.Key = "other"
			granted(b, h, 6)
		}, 6},
	} {
		t.Run(name, func(t *testing.T) {
			indebted(t, func(t *testing.T, b *backstop, s *faultyStore, unreported *atomic.Int64) {
				h := Hit{Rule: standby(limitOf(policy.FixedWindow, 100, 30*time.Second), 50), Key: "k", Cost: 1}
				test.before(t, b, s, h)
				time.Sleep(2 * reportPause)
				diff(t, "unreported", unreported.Load(), test.want)
			})
		})
	}
}

func TestReportsAreBoundedAndComeToAnEnd(t *testing.T) {
	indebted(t, func(t *testing.T, b *backstop, s *faultyStore, _ *atomic.Int64) {
		const keys = 5000
		s.down.Store(true)
		s.takes.Store(int64(DefaultTimeout))
		r := standby(limitOf(policy.FixedWindow, 100, 24*time.Hour), 50)
		for i := range keys {
			granted(b, Hit{Rule: r, Key: fmt.Sprint(i), Cost: 1}, 2)
		}
		time.Sleep(time.Minute)
		// A round of 256 calls, 64 at a time, takes two seconds, and a pause follows.
		if n, most := s.calls.Load(), s.mostAtOnce.Load(); n > 30*(maxFailedReports+maxReports) || most > maxReports {
			t.Errorf("%d calls in a minute, %d at a time", n, most)
		}
		s.takes.Store(int64(time.Millisecond))
		s.down.Store(false)
		time.Sleep(4 * time.Second)
		for i := range keys {
			if n := chargedTo(t, s, Hit{Rule: r, Key: fmt.Sprint(i)}); n != 2 {
				t.Fatalf("key %d: %d units are used, want 2", i, n)
			}
		}
	})
}

func TestCloseReportsWhatIsLeft(t *testing.T) {
	for name, test := range map[string]struct {
		down             bool
		used, unreported int64
	}{
		"the store answers":  {false, 7, 0},
		"the store does not": {true, 0, 7},
	} {
		t.Run(name, func(t *testing.T) {
			indebted(t, func(t *testing.T, b *backstop, s *faultyStore, unreported *atomic.Int64) {
				h := Hit{Rule: standby(limitOf(policy.SlidingWindow, 100, time.Hour), 50), Key: "k", Cost: 1}
				s.down.Store(test.down)
				granted(b, h, 7)
				b.close(t.Context())
				diff(t, "used", chargedTo(t, s, h), test.used)
				diff(t, "unreported", unreported.Load(), test.unreported)
				granted(b, h, 2)
				time.Sleep(time.Minute)
				diff(t, "unreported after the close", unreported.Load(), test.unreported+2)
			})
		})
	}
}

func TestCloseEndsWithItsContext(t *testing.T) {
	indebted(t, func(t *testing.T, b *backstop, s *faultyStore, unreported *atomic.Int64) {
		h := Hit{Rule: standby(limitOf(policy.SlidingWindow, 100, time.Hour), 50), Key: "k", Cost: 1}
		s.takes.Store(int64(time.Minute))
		granted(b, h, 7)
		time.Sleep(2 * reportPause) // a report is under way
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		b.close(ctx)
		if took := time.Since(began); took != time.Second {
			t.Errorf("it took %v", took)
		}
		diff(t, "unreported", unreported.Load(), 7)
	})
}

// C31: a store that comes and goes ten times in a window. With what the backstop
// admits each time, it is never more than the limit and one allowance.
func TestAFlappingStoreHandsOutOneAllowance(t *testing.T) {
	indebted(t, func(t *testing.T, b *backstop, s *faultyStore, _ *atomic.Int64) {
		const limit, allowance = 100, 20
		h := Hit{Rule: standby(limitOf(policy.FixedWindow, limit, time.Hour), allowance), Key: "k", Cost: 1}
		var admitted int64
		request := func() {
			c := Call{Hits: []Hit{h}}
			if err := s.Do(t.Context(), &c); err != nil {
				admitted += granted(b, h, 1)
				return
			}
			b.note(&h, c.Granted)
			admitted += c.Granted
		}
		for flap := range 10 {
			s.down.Store(flap%2 == 0)
			for range 40 {
				request()
			}
			time.Sleep(2 * time.Second)
		}
		// Its 20 came first and were reported: they are part of the limit's 100.
		diff(t, "admitted", admitted, limit)
	})
}

// C31 with a server that hangs ten times. What it carried out without our knowing
// counts against the limit, hence fewer may be admitted.
func TestAFlappingServerHandsOutOneAllowance(t *testing.T) {
	const limit, allowance = 100, 20
	server := testredis.Start(t)
	s, told := circuits(t, impatient(t, server.Addr))
	b := newBackstop(s, pods(1), Events{}, time.Now)
	defer b.close(t.Context())
	h := Hit{Rule: standby(limitOf(policy.FixedWindow, limit, 720*time.Hour), allowance), Key: "k", Cost: 1}
	var admitted, degraded int64
	request := func() {
		c := Call{Hits: []Hit{h}, Timeout: 20 * time.Millisecond}
		if err := s.Do(t.Context(), &c); err != nil {
			n := granted(b, h, 1)
			admitted, degraded = admitted+n, degraded+n
			return
		}
		b.note(&h, c.Granted)
		admitted += c.Granted
	}
	requestUntil := func(want bool) {
		for {
			select {
			case open := <-told:
				diff(t, "open", open, want)
				return
			default:
				request()
			}
		}
	}
	for range 10 {
		server.Pause()
		requestUntil(true)
		server.Resume()
		requestUntil(false)
	}
	for range limit {
		request()
	}
	if admitted > limit+allowance || admitted < limit/2 || degraded != allowance {
		t.Errorf("%d were admitted, %d of them by the backstop", admitted, degraded)
	}
}

// Whatever fails, and whenever: what the backstop granted is charged exactly once
// in the end.
func TestEveryUnitIsChargedOnce(t *testing.T) {
	type step struct {
		down, deaf bool
		n          int64
		pause      time.Duration
	}
	steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
		return step{
			down:  rapid.Bool().Draw(rt, "down"),
			deaf:  rapid.Bool().Draw(rt, "deaf"),
			n:     rapid.Int64Range(0, 9).Draw(rt, "n"),
			pause: time.Duration(rapid.IntRange(0, 3000).Draw(rt, "ms")) * time.Millisecond,
		}
	}), 1, 12)
	rapid.Check(t, func(rt *rapid.T) {
		happens := steps.Draw(rt, "steps")
		var admitted, charged, told int64
		// A property must not fail in the bubble.
		indebted(t, func(t *testing.T, b *backstop, s *faultyStore, unreported *atomic.Int64) {
			h := Hit{Rule: rule(limitOf(policy.FixedWindow, 1000, 24*time.Hour)), Key: "k", Cost: 1}
			for _, step := range happens {
				s.down.Store(step.down)
				s.deaf.Store(step.deaf)
				admitted += granted(b, h, step.n)
				time.Sleep(step.pause)
			}
			s.down.Store(false)
			s.deaf.Store(false)
			b.close(t.Context())
			charged, told = chargedTo(t, s, h), unreported.Load()
		})
		if charged != admitted || told != 0 {
			rt.Fatalf("%d were admitted, %d charged, %d told", admitted, charged, told)
		}
	})
}
