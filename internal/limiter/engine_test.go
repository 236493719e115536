package limiter

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// engineOver returns an engine and its store, within a bubble of synthetic time.
func engineOver(t *testing.T, n int) (*Engine, *countingStore) {
	s := &countingStore{Store: NewMemory(time.Now)}
	e := NewEngine(s, EngineOptions{Pods: pods(n)})
	t.Cleanup(func() { e.Close(context.Background()) })
	return e, s
}

// planned is the rule of a policy's limit.
func planned(t *testing.T, l policy.Limit) *Rule {
	t.Helper()
	spec := policy.Spec{Limits: []policy.Limit{l}}
	spec.Default()
	r, err := PrepareLimit(&spec.Limits[0])
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func perMinute(requests int64, mode policy.DistributionMode, failure policy.FailurePolicy) policy.Limit {
	return policy.Limit{
		Name: "l", Requests: &requests, Window: policy.Duration(time.Minute), Algorithm: policy.FixedWindow,
		Distribution: policy.Distribution{Mode: mode}, FailurePolicy: failure,
	}
}

// admitted takes one request after the other and counts those that pass.
func admitted(t *testing.T, s Store, n int, hits ...Hit) (passed int) {
	t.Helper()
	for range n {
		passed += int(do(t, s, Call{Hits: hits}).Granted)
	}
	return passed
}

func TestEngineAnswersARefusedKeyByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, store := engineOver(t, 1)
		hit := Hit{Rule: planned(t, perMinute(3, policy.Exact, policy.FailureBackstop)), Key: "k", Cost: 1}
		diff(t, "admitted", admitted(t, e, 100, hit), 3)
		diff(t, "calls", store.calls.Load(), 4)
		time.Sleep(time.Second) // a refusal is remembered for a second at most
		diff(t, "admitted later", admitted(t, e, 100, hit), 0)
		diff(t, "calls", store.calls.Load(), 5)

		// Changed policies have new rules. (C39)
		raised := hit
		raised.Rule = planned(t, perMinute(5, policy.Exact, policy.FailureBackstop))
		diff(t, "admitted by more", admitted(t, e, 10, raised), 2)

		do(t, e, Call{Op: Refund, Hits: []Hit{raised}})
		diff(t, "admitted after a refund", admitted(t, e, 10, raised), 1)
	})
}

func TestEngineFollowsTheFailurePolicy(t *testing.T) {
	for failure, want := range map[policy.FailurePolicy]struct {
		admitted int
		last     Result
	}{
		policy.FailureAllow: {10, Result{Allowed: true, Reason: StoreUnavailable, Degraded: true, Unknown: true}},
		policy.FailureDeny:  {0, Result{Reason: StoreUnavailable, Degraded: true, Unknown: true}},
		// 8 requests and 2 pods.
		policy.FailureBackstop: {4, Result{Reason: LimitExceeded, RetryAfter: time.Minute, ResetAfter: time.Minute, Degraded: true, Unknown: true}},
	} {
		for _, mode := range []policy.DistributionMode{policy.Exact, policy.Leased, policy.Synced} {
			t.Run(fmt.Sprint(failure, mode), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e, store := engineOver(t, 2)
					store.down.Store(true)
					hit := Hit{Rule: planned(t, perMinute(8, mode, failure)), Key: "k", Cost: 1}
					peek := Call{Op: Peek, Hits: []Hit{hit}, Count: 10}
					diff(t, "a peek for ten", int(do(t, e, peek).Granted), want.admitted)
					diff(t, "admitted", admitted(t, e, 10, hit), want.admitted)
					diff(t, "a peek", do(t, e, Call{Op: Peek, Hits: []Hit{hit}}).Results[0], want.last)
					c := do(t, e, Call{Hits: []Hit{hit}})
					diff(t, "the last", c.Results[0], want.last)
					if !errors.Is(c.Failure, errDown) {
						t.Errorf("the failure is %v", c.Failure)
					}
					hit.Cost = 9
					diff(t, "a cost above the limit", do(t, e, Call{Hits: []Hit{hit}}).Results[0],
						Result{Reason: CostExceedsLimit, Degraded: true, Unknown: true})
				})
			})
		}
	}
}

// C31: a store that comes and goes hands out no allowance each time.
func TestBackstopIsWarmWhenTheStoreFlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, store := engineOver(t, 2)
		hit := Hit{Rule: planned(t, perMinute(10, policy.Exact, policy.FailureBackstop)), Key: "k", Cost: 1}
		passed := 0
		for i := range 20 {
			store.down.Store(i%2 == 1)
			passed += admitted(t, e, 3, hit)
		}
		if passed > 10+5 {
			t.Fatalf("%d passed, with a limit of 10 and an allowance of 5", passed)
		}
		// What the backstop admitted is charged when the store is back.
		store.down.Store(false)
		time.Sleep(10 * time.Second)
		diff(t, "remaining", peek(t, e, hit)[0].Remaining, int64(max(0, 10-passed)))
	})
}

// All limits of a request grant it, or none is charged, whoever decides them.
func TestEngineChargesAllLimitsOrNone(t *testing.T) {
	modes := []policy.DistributionMode{policy.Exact, policy.Leased, policy.Synced, policy.Split}
	for _, refusing := range modes {
		t.Run(string(refusing), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, _ := engineOver(t, 1)
				var hits []Hit
				for _, mode := range modes {
					requests := int64(20)
					if mode == refusing {
						requests = 5
					}
					hits = append(hits, Hit{Rule: planned(t, perMinute(requests, mode, policy.FailureBackstop)), Key: string(mode), Cost: 1})
				}
				diff(t, "admitted together", admitted(t, e, 10, hits...), 5)
				for i, mode := range modes {
					if mode != refusing {
						diff(t, string(mode), admitted(t, e, 30, hits[i]), 15)
					}
				}
			})
		})
	}
}

// A shadow counts and stands in nobody's way.
func TestEngineShadowsRefuseNobody(t *testing.T) {
	for _, mode := range []policy.DistributionMode{policy.Exact, policy.Leased, policy.Synced, policy.Split} {
		synctest.Test(t, func(t *testing.T) {
			e, _ := engineOver(t, 1)
			shadow := Hit{Rule: planned(t, perMinute(2, mode, policy.FailureBackstop)), Key: "s", Cost: 1, Shadow: true}
			enforced := Hit{Rule: planned(t, perMinute(5, policy.Exact, policy.FailureBackstop)), Key: "e", Cost: 1}
			diff(t, string(mode), admitted(t, e, 10, shadow, enforced), 5)
			shadow.Shadow = false
			diff(t, "left of the shadow", admitted(t, e, 10, shadow), 0)
		})
	}
}

// Slots are held while the request runs, however long, and come back with its
// end; after a crash they end by themselves.
func TestSlotsAreHeldUntilReleased(t *testing.T) {
	for _, mode := range []policy.DistributionMode{policy.Exact, policy.Split} {
		t.Run(string(mode), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, _ := engineOver(t, 1)
				l := perMinute(2, mode, policy.FailureBackstop)
				l.Algorithm = policy.Concurrency
				hits := []Hit{{Rule: planned(t, l), Key: "k", Cost: 1}}
				first, second := do(t, e, Call{Hits: hits}), do(t, e, Call{Hits: hits})
				if first.Token == "" || first.Token == second.Token {
					t.Fatalf("tokens %q and %q", first.Token, second.Token)
				}
				time.Sleep(10 * time.Minute)
				third := do(t, e, Call{Hits: hits})
				if third.Granted != 0 || third.Results[0].Reason != LimitExceeded {
					t.Fatalf("a third of two: %+v", third)
				}
				e.Release(t.Context(), third.Token) // holds nothing
				e.Release(t.Context(), first.Token)
				e.Release(t.Context(), first.Token)
				diff(t, "after a release", admitted(t, e, 5, hits...), 1)
			})
		})
	}
}

// Slots of a short window are renewed in time beside those of a long one.
func TestSlotsOfAllWindowsAreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := engineOver(t, 1)
		for _, window := range []time.Duration{time.Hour, time.Second, time.Minute} {
			l := perMinute(1, policy.Exact, policy.FailureBackstop)
			l.Algorithm, l.Window = policy.Concurrency, policy.Duration(window)
			hit := Hit{Rule: planned(t, l), Key: window.String(), Cost: 1}
			do(t, e, Call{Hits: []Hit{hit}})
			time.Sleep(3 * time.Second)
			diff(t, window.String(), admitted(t, e, 1, hit), 0)
		}
	})
}

func TestSlotsOfACrashedProcessEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := NewMemory(time.Now)
		l := perMinute(2, policy.Exact, policy.FailureBackstop)
		l.Algorithm = policy.Concurrency
		hits := []Hit{{Rule: planned(t, l), Key: "k", Cost: 2}}
		do(t, shared, Call{Hits: hits, Token: "crashed"})
		e := NewEngine(shared, EngineOptions{})
		defer e.Close(t.Context())
		diff(t, "at once", admitted(t, e, 1, hits...), 0)
		time.Sleep(time.Minute)
		diff(t, "after a window", admitted(t, e, 1, hits...), 1)
	})
}

// A closed engine has given back what it held.
func TestCloseEndsSlotsAndLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := NewMemory(time.Now)
		e := NewEngine(shared, EngineOptions{})
		l := perMinute(2, policy.Exact, policy.FailureBackstop)
		l.Algorithm = policy.Concurrency
		slot := Hit{Rule: planned(t, l), Key: "slot", Cost: 1}
		lease := Hit{Rule: planned(t, perMinute(1000, policy.Leased, policy.FailureBackstop)), Key: "lease", Cost: 1}
		do(t, e, Call{Hits: []Hit{slot, lease}})
		e.Close(t.Context())
		r := peek(t, shared, slot, lease)
		if r[0].Remaining != 2 || r[1].Remaining != 999 {
			t.Fatalf("left %+v", r)
		}
	})
}

// One timeout is for all that a decision waits for, however many it asks.
func TestTheTimeoutIsForTheWholeDecision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewEngine(hanging{}, EngineOptions{})
		defer e.Close(t.Context())
		var hits []Hit
		for i, mode := range []policy.DistributionMode{policy.Leased, policy.Leased, policy.Synced, policy.Exact} {
			hits = append(hits, Hit{Rule: planned(t, perMinute(100, mode, policy.FailureAllow)), Key: fmt.Sprint(i), Cost: 1})
		}
		began := time.Now()
		if c := do(t, e, Call{Hits: hits, Timeout: time.Second}); c.Granted != 1 || !c.Results[3].Degraded {
			t.Errorf("%+v", c)
		}
		if took := time.Since(began); took > 1100*time.Millisecond {
			t.Errorf("a decision took %v, with a timeout of 1s", took)
		}
	})
}

// hanging is a store that answers nobody in time.
type hanging struct{}

func (hanging) Do(_ context.Context, c *Call) error {
	time.Sleep(c.timeout())
	return errDown
}

// The end of a request with slots leaves nothing behind.
func TestReleaseLeavesNoToken(t *testing.T) {
	client := testredis.Shared(t).Client(t)
	s := NewRedis(client, RedisOptions{})
	l := limitOf(policy.Concurrency, 5, time.Minute)
	hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
	do(t, s, Call{Hits: []Hit{hit}, Token: "a"})
	do(t, s, Call{Op: Refund, Hits: []Hit{hit}, Token: "a"})
	if keys := command(t, client, "KEYS", hit.Key+"*"); len(keys.([]any)) != 0 {
		t.Fatalf("left: %v", keys)
	}
}

// What is counted in several places is reserved in all of them or in none.
func TestEngineReservesAllOrNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, store := engineOver(t, 1)
		hit := func(key string, requests int64, mode policy.DistributionMode) Hit {
			return Hit{Rule: planned(t, perMinute(requests, mode, policy.FailureBackstop)), Key: key, Cost: 1}
		}
		slots := perMinute(9, policy.Split, policy.FailureBackstop)
		slots.Algorithm = policy.Concurrency
		part, wide, narrow := hit("part", 9, policy.Split), hit("wide", 9, policy.Exact), hit("narrow", 1, policy.Exact)
		hits := []Hit{wide, part, narrow, {Rule: planned(t, slots), Key: "slots", Cost: 1}}
		left := func() (all []int64) {
			for _, h := range hits {
				all = append(all, do(t, e, Call{Op: Peek, Hits: []Hit{h}}).Results[0].Remaining)
			}
			return all
		}
		c := do(t, e, Call{Op: Reserve, Hits: hits, Token: "a"})
		diff(t, "granted", c.Granted, 1)
		diff(t, "left", left(), []int64{8, 8, 0, 8})
		before := store.calls.Load()
		c = do(t, e, Call{Op: Reserve, Hits: hits, Token: "b"})
		diff(t, "granted beyond the limit", c.Granted, 0)
		diff(t, "allowed", []bool{c.Results[0].Allowed, c.Results[1].Allowed, c.Results[2].Allowed}, []bool{true, true, false})
		diff(t, "calls of the store", store.calls.Load()-before, 1)
		diff(t, "left", left(), []int64{8, 8, 0, 8})

		store.down.Store(true)
		do(t, e, Call{Op: Reserve, Hits: hits[:2], Token: "c"})
		store.down.Store(false)
		diff(t, "left after a failure", left(), []int64{8, 8, 0, 8})
		c = do(t, e, Call{Op: Reserve, Hits: []Hit{wide, part, hit("none", 0, policy.Split)}, Token: "d"})
		diff(t, "granted by a part of 0", c.Granted, 0)
		diff(t, "left after that", left(), []int64{8, 8, 0, 8})

		for i := range hits {
			hits[i].Cost = 3
		}
		do(t, e, Call{Op: Settle, Hits: hits, Token: "a"})
		diff(t, "left after settling", left(), []int64{6, 6, 0, 8})
	})
}
