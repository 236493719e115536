package limiter

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

func TestAResetCounterIsThatOfTheFirstRequest(t *testing.T) {
	for _, a := range append(slices.Clone(algorithms), policy.Concurrency) {
		t.Run(string(a), func(t *testing.T) {
			onBothStores(t, func(t *testing.T, s Store, c *clock) {
				l := limitOf(a, 5, time.Minute)
				hit, other := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}, Hit{Rule: rule(l), Key: keyOf(t, l) + "other", Cost: 1}
				fill := func(h Hit) (granted int64) {
					for _, token := range []string{"a", "b", "c", "d", "e", "f"} {
						granted += do(t, s, Call{Hits: []Hit{h}, Token: token}).Granted
					}
					return granted
				}
				fill(hit)
				fill(other)
				for range 2 { // the second time there is nothing
					reset := do(t, s, Call{Op: Reset, Hits: []Hit{hit}})
					if r := reset.Results[0]; reset.Granted != 1 || !r.Allowed || r.Remaining != 5 || r.ResetAfter != 0 {
						t.Fatalf("a reset answers %+v", reset)
					}
				}
				if redis, ok := s.(*Redis); ok {
					diff(t, "keys", redis.client.Exists(t.Context(), hit.Key).Val(), 0)
				}
				diff(t, "remaining of another", peek(t, s, other)[0].Remaining, 0)
				diff(t, "admitted afterwards", fill(hit), 5)
			})
		})
	}
}

// A reset lasts: the time at which the old counter would have ended means nothing to
// the new one.
func TestAResetCounterLastsAsLongAsAnyOther(t *testing.T) {
	onEveryAlgorithm(t, 5, time.Minute, func(t *testing.T, s Store, c *clock, l Limit) {
		hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
		do(t, s, Call{Hits: []Hit{hit}, Count: 5})
		c.set(50 * time.Second)
		do(t, s, Call{Op: Reset, Hits: []Hit{hit}})
		do(t, s, Call{Hits: []Hit{hit}, Count: 5})
		c.set(59 * time.Second)
		take(t, s, Hit{Rule: hit.Rule, Key: hit.Key + "other", Cost: 1}) // which sweeps
		if r := take(t, s, hit)[0]; r.Allowed && l.Algorithm != policy.TokenBucket {
			t.Errorf("after a reset: %+v", r)
		}
	})
}

func TestTheEngineForgetsWhatItKnowsOfAResetCounter(t *testing.T) {
	for _, mode := range []policy.DistributionMode{policy.Exact, policy.Leased, policy.Synced, policy.Split} {
		t.Run(string(mode), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, store := engineOver(t, 1)
				limit := perMinute(100, mode, policy.FailureBackstop)
				switch mode {
				case policy.Leased:
					limit.Distribution.MaxIdlePercent = 20
				case policy.Synced:
					limit.Distribution.MaxOvershootPercent = 1
				}
				hit := Hit{Rule: planned(t, limit), Key: "k", Cost: 1}
				for _, before := range []int{30, 200} { // with units left, and without
					admitted(t, e, before, hit)
					reset := do(t, e, Call{Op: Reset, Hits: []Hit{hit}})
					diff(t, "remaining", reset.Results[0].Remaining, 100)
					diff(t, "admitted after a reset", admitted(t, e, 200, hit), 100)
					time.Sleep(2 * time.Second) // what was not exchanged is
					if mode != policy.Split {
						diff(t, "remaining in the store", peek(t, store, hit)[0].Remaining, 0)
					}
					do(t, e, Call{Op: Reset, Hits: []Hit{hit}})
				}
			})
		})
	}
}

// leasedOver is engineOver with a hit of a Leased limit of 100, of which 20 may lie idle.
func leasedOver(t *testing.T, cost int64) (*Engine, *countingStore, Hit) {
	e, store := engineOver(t, 1)
	limit := perMinute(100, policy.Leased, policy.FailureDeny)
	limit.Distribution.MaxIdlePercent = 20
	return e, store, Hit{Rule: planned(t, limit), Key: "k", Cost: cost}
}

func TestUnitsThatAreLeasedDuringAResetAreNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, store, hit := leasedOver(t, 1)
		diff(t, "admitted", admitted(t, e, 30, hit), 30)
		meanwhile := 0
		store.after = func(c *Call) {
			if c.Op == Reset {
				meanwhile = admitted(t, e, 3, hit)
			}
		}
		do(t, e, Call{Op: Reset, Hits: []Hit{hit}})
		diff(t, "admitted during the reset", meanwhile, 3)
		diff(t, "admitted afterwards", admitted(t, e, 200, hit), 97)
	})
}

func TestWhatALeaseHearsDuringAResetMeansNothingAfterwards(t *testing.T) {
	for _, cost := range []int64{1, 30} { // by a lease, and for the very request
		synctest.Test(t, func(t *testing.T) {
			t.Logf("cost %d", cost)
			e, store, hit := leasedOver(t, cost)
			do(t, store, Call{Hits: []Hit{{Rule: hit.Rule, Key: hit.Key, Cost: 100}}})
			reset := false
			store.after = func(c *Call) {
				if c.Op == Take && !reset {
					reset = true
					time.Sleep(time.Millisecond) // the reset is later than the question
					do(t, e, Call{Op: Reset, Hits: []Hit{hit}})
				}
			}
			diff(t, "admitted by what was asked before", admitted(t, e, 1, hit), 0)
			diff(t, "admitted afterwards", admitted(t, e, 200, hit), int(100/cost))
		})
	}
}

// What was taken from the count before it was reset does not come to hand again, on top
// of the new count.
func TestUnitsOfBeforeAResetDoNotComeBack(t *testing.T) {
	for name, comesBack := range map[string]func(t *testing.T, e *Engine, s *countingStore, hit Hit){
		"by a request that fails": func(t *testing.T, e *Engine, s *countingStore, hit Hit) {
			s.before = func(c *Call) {
				if c.Op == Take {
					s.before = nil
					do(t, e, Call{Op: Reset, Hits: []Hit{hit}})
					s.down.Store(true)
				}
			}
			// More than may lie idle: all that is at hand, and the rest from the store.
			diff(t, "granted", do(t, e, Call{Hits: []Hit{hit}, Count: 25}).Granted, 0)
		},
		"by another limit that refuses": func(t *testing.T, e *Engine, s *countingStore, hit Hit) {
			do(t, e, Call{Op: Reset, Hits: []Hit{hit}})
			e.leases.giveBack(&hit, 15)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, store, hit := leasedOver(t, 1)
				diff(t, "admitted", admitted(t, e, 30, hit), 30)
				synctest.Wait()
				if e.leases.held()[hit.Rule].Units == 0 {
					t.Fatal("nothing is at hand")
				}
				comesBack(t, e, store, hit)
				synctest.Wait()
				store.down.Store(false)
				diff(t, "admitted afterwards", admitted(t, e, 200, hit), 100)
			})
		})
	}
}

func TestAResetThatFailsLeavesALeaseItsUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, store, hit := leasedOver(t, 1)
		admitted(t, e, 30, hit)
		synctest.Wait()
		held := e.leases.held()[hit.Rule].Units
		store.down.Store(true)
		if err := e.Do(t.Context(), &Call{Op: Reset, Hits: []Hit{hit}}); err == nil || held == 0 {
			t.Fatalf("err = %v with %d units at hand", err, held)
		}
		diff(t, "admitted without the store", admitted(t, e, 200, hit), int(held))
	})
}

// However resets and requests meet, a reset brings a limit's units at most, and what
// is on its way.
func TestResetsAndRequestsMeet(t *testing.T) {
	for _, mode := range []policy.DistributionMode{policy.Exact, policy.Leased, policy.Synced, policy.Split} {
		t.Run(string(mode), func(t *testing.T) {
			const requests, onItsWay, resets = 500, 100, 30
			e := NewEngine(NewMemory(time.Now), EngineOptions{})
			defer e.Close(context.Background())
			limit := perMinute(requests, mode, policy.FailureDeny)
			limit.Window = policy.Duration(time.Hour)
			switch mode {
			case policy.Leased:
				limit.Distribution.MaxIdlePercent = 100 * onItsWay / requests
			case policy.Synced:
				limit.Distribution.MaxOvershootPercent = 100 * onItsWay / requests
			}
			hit := Hit{Rule: planned(t, limit), Key: "k", Cost: 1}
			var passed atomic.Int64
			var askers sync.WaitGroup
			for range 4 {
				askers.Go(func() {
					for range 10_000 {
						c := Call{Hits: []Hit{hit}}
						if err := e.Do(context.Background(), &c); err != nil {
							t.Error(err)
						}
						passed.Add(c.Granted)
					}
				})
			}
			for range resets {
				do(t, e, Call{Op: Reset, Hits: []Hit{hit}})
			}
			askers.Wait()
			if n := passed.Load(); n < requests || n > (resets+1)*(requests+onItsWay) {
				t.Errorf("%d resets admitted %d", resets, n)
			}
		})
	}
}

// Who could be given units that were admitted during an outage starts with none.
func TestAResetCounterOwesNothingForAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, store := engineOver(t, 1)
		hit := Hit{Rule: planned(t, perMinute(10, policy.Exact, policy.FailureBackstop)), Key: "k", Cost: 1}
		store.down.Store(true)
		diff(t, "admitted by the backstop", admitted(t, e, 20, hit), 10)
		if err := e.Do(t.Context(), &Call{Op: Reset, Hits: []Hit{hit}}); err == nil {
			t.Error("a reset without the store is no error")
		}
		diff(t, "admitted after a reset that failed", admitted(t, e, 20, hit), 0)
		store.down.Store(false)
		do(t, e, Call{Op: Reset, Hits: []Hit{hit}})
		time.Sleep(5 * time.Second) // a round of reports, and more
		diff(t, "admitted by the store", admitted(t, e, 20, hit), 10)
		do(t, e, Call{Op: Reset, Hits: []Hit{hit}})
		store.down.Store(true)
		diff(t, "admitted by the backstop again", admitted(t, e, 20, hit), 10)
	})
}

func TestSlotsThatWereResetAreNotHeldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, store := engineOver(t, 1)
		limit := perMinute(2, policy.Exact, policy.FailureDeny)
		limit.Algorithm = policy.Concurrency
		hit := Hit{Rule: planned(t, limit), Key: "k", Cost: 1}
		first := do(t, e, Call{Hits: []Hit{hit}})
		do(t, e, Call{Op: Reset, Hits: []Hit{hit}})
		diff(t, "remaining", peek(t, e, hit)[0].Remaining, 2)
		time.Sleep(90 * time.Second) // renewals have come and gone
		diff(t, "remaining after renewals", peek(t, store, hit)[0].Remaining, 2)
		do(t, e, Call{Hits: []Hit{hit}})
		e.Release(t.Context(), first.Token)
		diff(t, "remaining when the first has ended", peek(t, store, hit)[0].Remaining, 1)
	})
}

func TestResetOnACluster(t *testing.T) {
	cluster := testredis.StartCluster(t, 3)
	s := NewRedis(cluster.Client(t), RedisOptions{})
	t.Cleanup(func() { s.Close(t.Context()) })
	for _, tag := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} { // of all nodes
		l := limitOf(policy.TokenBucket, 5, time.Hour)
		hit := Hit{Rule: rule(l), Key: CounterKey("tallyman:c:shop:orders:x:t1:", tag), Cost: 1}
		do(t, s, Call{Hits: []Hit{hit}, Count: 5})
		diff(t, "remaining before", peek(t, s, hit)[0].Remaining, 0)
		diff(t, "remaining after", do(t, s, Call{Op: Reset, Hits: []Hit{hit}}).Results[0].Remaining, 5)
		diff(t, "remaining", peek(t, s, hit)[0].Remaining, 5)
	}
}
