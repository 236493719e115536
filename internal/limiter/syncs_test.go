package limiter

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// syncedAlgorithms are those that can be counted in views.
var syncedAlgorithms = []policy.Algorithm{policy.FixedWindow, policy.SlidingWindow, policy.TokenBucket}

func syncedRule(l Limit, d policy.Distribution) *Rule {
	r := rule(l)
	d.Mode = policy.Synced
	r.distribution = d
	return r
}

func overshooting(l Limit, percent int32) *Rule {
	return syncedRule(l, policy.Distribution{MaxOvershootPercent: percent})
}

func exchanging(l Limit, interval time.Duration) *Rule {
	return syncedRule(l, policy.Distribution{Interval: policy.Duration(interval)})
}

var errLost = errors.New("lost")

// farStore is a store behind a network: calls take their time, and requests or
// replies can be lost.
type farStore struct {
	Store
	mu     sync.Mutex
	random *rand.Rand
	// slow is the longest way of a call or a reply.
	slow time.Duration
	// loses is the share of replies that are lost; of those to a Take too, unless
	// they are spared.
	loses  float64
	spares bool
	down   atomic.Bool
	calls  atomic.Int64
}

func newFarStore() *farStore {
	return &farStore{Store: NewMemory(time.Now), random: rand.New(rand.NewPCG(1, 1))}
}

// spoil makes the network slow, and has it lose replies.
func (f *farStore) spoil(slow time.Duration, loses float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slow, f.loses = slow, loses
}

func (f *farStore) way() (time.Duration, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.slow == 0 {
		return 0, f.random.Float64() < f.loses
	}
	return time.Duration(f.random.Int64N(int64(f.slow))), f.random.Float64() < f.loses
}

func (f *farStore) Do(ctx context.Context, c *Call) error {
	f.calls.Add(1)
	if f.down.Load() {
		return errLost
	}
	there, _ := f.way()
	time.Sleep(there)
	err := f.Store.Do(ctx, c)
	back, lost := f.way()
	time.Sleep(back)
	if lost && (!f.spares || c.Op != Take) {
		return errLost
	}
	return err
}

// inPods runs a test with a pod's syncs for each place, in simulated time.
func inPods(t *testing.T, n int, test func(t *testing.T, store *farStore, pods []*syncs)) {
	synctest.Test(t, func(t *testing.T) {
		store := newFarStore()
		pods := syncedPods(store, n, Events{})
		test(t, store, pods)
		leaveAll(t, pods)
	})
}

func syncedPods(store Store, n int, events Events) []*syncs {
	pods := make([]*syncs, n)
	for place := range pods {
		p := &pod{live: n, place: place}
		pods[place] = newSyncs(store, p.where, events, time.Now)
	}
	return pods
}

func leaveAll(t fataler, pods []*syncs) {
	for _, p := range pods {
		p.close(t.Context())
	}
}

func used(t fataler, s Store, r *Rule, key string) int64 {
	return r.limit.Requests - peek(t, s, Hit{Rule: r, Key: key, Cost: 1})[0].Remaining
}

// pause lets an interval pass, and what it brings about happen.
func pause(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// C25: units are not counted twice after an exchange.
func TestExchangedUnitsCountOnce(t *testing.T) {
	for _, a := range syncedAlgorithms {
		t.Run(string(a), func(t *testing.T) {
			for _, r := range []*Rule{
				overshooting(limitOf(a, 100, 720*time.Hour), 10),
				exchanging(limitOf(a, 100, 720*time.Hour), 100*time.Millisecond),
			} {
				inPods(t, 1, func(t *testing.T, store *farStore, pods []*syncs) {
					hit := Hit{Rule: r, Key: "k", Cost: 1}
					diff(t, "granted at first", spend(t, pods[0], hit, 60), 60)
					pause(3 * time.Second)
					diff(t, "used in the store", used(t, store, r, "k"), 60)
					diff(t, "granted then", spend(t, pods[0], hit, 100), 40)
					pause(3 * time.Second)
					diff(t, "used in the store", used(t, store, r, "k"), 100)
					diff(t, "granted at last", spend(t, pods[0], hit, 10), 0)
				})
			}
		})
	}
}

// C27: what an exchange answers has the weight of the window before.
func TestAnExchangeKeepsThePreviousWindow(t *testing.T) {
	inPods(t, 1, func(t *testing.T, store *farStore, pods []*syncs) {
		r := exchanging(limitOf(policy.SlidingWindow, 400, 3*time.Second), 10*time.Millisecond)
		hit := Hit{Rule: r, Key: "k", Cost: 1}
		do(t, store, Call{Hits: []Hit{hit}, Count: 300})
		pause(3*time.Second + 30*time.Millisecond)
		for range 4 {
			diff(t, "granted", spend(t, pods[0], hit, 5), 5)
			pause(10 * time.Millisecond)
		}
		_, r2, err := pods[0].take(t.Context(), &Hit{Rule: r, Key: "k"}, 1, 0)
		if err != nil || r2.Remaining < 80 || r2.Remaining > 120 {
			t.Fatalf("%+v, %v", r2, err)
		}
		diff(t, "remaining in the store", peek(t, store, hit)[0].Remaining, r2.Remaining)
	})
}

// The traffic of which equal parts admit 55.
func TestSyncedAdmitsWhatOtherPodsHaveLeft(t *testing.T) {
	for _, a := range syncedAlgorithms {
		t.Run(string(a), func(t *testing.T) {
			inPods(t, 10, func(t *testing.T, _ *farStore, pods []*syncs) {
				hit := Hit{Rule: overshooting(limitOf(a, 100, time.Hour), 10), Key: "k", Cost: 1}
				var admitted int64
				for round := range int64(20) {
					for place, requests := range unevenTraffic {
						if round < requests {
							admitted += spend(t, pods[place], hit, 1)
						}
					}
				}
				diff(t, "admitted of 100", admitted, 100)
				for _, p := range pods {
					admitted += spend(t, p, hit, 20)
				}
				if admitted > 110 {
					t.Errorf("%d were admitted, bound 110", admitted)
				}
			})
		})
	}
}

// Whatever the traffic and the network do, all pods together admit at most the
// declared share above the limit; and the limit, when there is demand for it.
func TestOvershootStaysWithinWhatIsDeclared(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(rt, "pods")
		percent := rapid.Int32Range(1, 100).Draw(rt, "percent")
		l := limitOf(rapid.SampledFrom(syncedAlgorithms).Draw(rt, "algorithm"), rapid.Int64Range(1, 300).Draw(rt, "requests"), 1000*24*time.Hour)
		hit := Hit{Rule: overshooting(l, percent), Key: "k", Cost: rapid.Int64Range(1, min(3, l.Requests)).Draw(rt, "cost")}
		seed := rapid.Uint64().Draw(rt, "seed")
		slow := time.Duration(rapid.Int64Range(0, 20_000_000).Draw(rt, "longest way in ns"))
		loses := rapid.SampledFrom([]float64{0, 0, 0.1, 0.5}).Draw(rt, "replies lost")

		var units int64
		inPods(t, n, func(t *testing.T, store *farStore, pods []*syncs) {
			store.random = rand.New(rand.NewPCG(seed, 1))
			store.spoil(slow, loses)
			units = crowd(store, pods, hit) * hit.Cost
		})
		bound := max(1, l.Requests*int64(percent)/100/int64(n))
		const earned = 1 // by a bucket meanwhile, at most
		if units > l.Requests+int64(n)*bound+earned {
			rt.Fatalf("%d units were admitted, limit %d, bound %d for each pod", units, l.Requests, bound)
		}
		if loses == 0 && units <= l.Requests-hit.Cost {
			rt.Fatalf("%d units were admitted, limit %d", units, l.Requests)
		}
	})
}

// crowd has callers at each pod ask, the first pods more often, until long after
// the limit must be used up.
func crowd(store *farStore, pods []*syncs, hit Hit) int64 {
	var admitted atomic.Int64
	var wg sync.WaitGroup
	rounds := int(hit.Rule.limit.Requests) + 20
	for place, p := range pods {
		for range 1 + 6/(place+1) {
			wg.Go(func() {
				for range rounds {
					granted, _, err := p.take(context.Background(), &hit, 1, time.Second)
					if err == nil {
						admitted.Add(granted)
					}
					between, _ := store.way()
					time.Sleep(between / 4)
				}
			})
		}
	}
	wg.Wait()
	time.Sleep(5 * time.Second)
	return admitted.Load()
}

// What a pod admits reaches the shared count once, although replies are lost.
func TestLostRepliesAreNeitherLostNorCountedTwice(t *testing.T) {
	for _, a := range syncedAlgorithms {
		for name, r := range map[string]*Rule{
			"interval": exchanging(limitOf(a, 1_000_000, 7200*time.Hour), 50*time.Millisecond),
			"percent":  overshooting(limitOf(a, 1_000_000, 7200*time.Hour), 1),
		} {
			t.Run(string(a)+" by "+name, func(t *testing.T) {
				inPods(t, 3, func(t *testing.T, store *farStore, pods []*syncs) {
					hit := Hit{Rule: r, Key: "k", Cost: 2}
					var admitted int64
					// What the store decides by itself is not repeated.
					store.spares = true
					store.spoil(5*time.Millisecond, 0.5)
					for i := range 600 {
						p := pods[i*i%3]
						granted, _, err := p.take(t.Context(), &hit, 1, time.Second)
						if err != nil {
							t.Fatal(err)
						}
						if admitted += granted; i%7 == 0 {
							p.giveBack(&hit, granted)
							admitted -= granted
						}
						time.Sleep(3 * time.Millisecond)
					}
					pause(time.Minute / 4)
					store.spoil(0, 0)
					diff(t, "units that are counted", used(t, store, r, "k"), 2*admitted)
				})
			})
		}
	}
}

// A pod that is new to a key does not begin with the whole limit.
func TestANewPodAsksFirst(t *testing.T) {
	inPods(t, 2, func(t *testing.T, store *farStore, pods []*syncs) {
		hit := Hit{Rule: exchanging(limitOf(policy.FixedWindow, 10, time.Hour), time.Minute), Key: "k", Cost: 1}
		do(t, store, Call{Hits: []Hit{hit}, Count: 7})
		diff(t, "granted", spend(t, pods[0], hit, 10), 3)
		diff(t, "calls", store.calls.Load(), 2)
	})
}

// Most decisions are made without a call.
func TestViewsSpareTheStore(t *testing.T) {
	inPods(t, 2, func(t *testing.T, store *farStore, pods []*syncs) {
		hit := Hit{Rule: overshooting(limitOf(policy.SlidingWindow, 100_000, time.Minute), 10), Key: "k", Cost: 1}
		for range 100 { // of 10 ms, 1000 requests each: all of a minute in a second
			for _, p := range pods {
				spend(t, p, hit, 500)
			}
			pause(10 * time.Millisecond)
		}
		if calls := store.calls.Load(); calls > 200 {
			t.Errorf("%d calls for 100,000 decisions", calls)
		}
	})
}

func TestOvershootIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told atomic.Int64
		store := newFarStore()
		r := exchanging(limitOf(policy.FixedWindow, 100, time.Hour), time.Second)
		pods := syncedPods(store, 3, Events{Overshoot: func(of *Rule, units int64) {
			if of != r {
				t.Error("the overshoot of another rule")
			}
			told.Add(units)
		}})
		hit := Hit{Rule: r, Key: "k", Cost: 1}
		var admitted int64
		for _, p := range pods {
			admitted += spend(t, p, hit, 1)
		}
		for _, p := range pods {
			admitted += spend(t, p, hit, 60)
		}
		pause(3 * time.Second)
		if admitted <= 100 {
			t.Fatalf("%d were admitted: nothing to tell", admitted)
		}
		diff(t, "overshoot", told.Load(), admitted-100)
		leaveAll(t, pods)
	})
}

// While the store does not answer, what is declared is all that a pod admits by
// itself.
func TestWithoutAStoreViewsHoldForAWhile(t *testing.T) {
	l := limitOf(policy.TokenBucket, 1000, 7200*time.Hour)
	for _, test := range []struct {
		name  string
		rule  *Rule
		after time.Duration
		admit int64
		fails bool
	}{
		{"up to the declared overshoot", overshooting(l, 10), 9 * time.Second, 25, true},
		{"for three intervals", exchanging(l, 100*time.Millisecond), 299 * time.Millisecond, 100, false},
		{"and no longer", exchanging(l, 100*time.Millisecond), 301 * time.Millisecond, 0, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			inPods(t, 4, func(t *testing.T, store *farStore, pods []*syncs) {
				hit := Hit{Rule: test.rule, Key: "k", Cost: 1}
				spend(t, pods[0], hit, 1)
				store.down.Store(true)
				time.Sleep(test.after)
				var admitted int64
				var err error
				for range 100 {
					var granted int64
					if granted, _, err = pods[0].take(t.Context(), &hit, 1, 0); err == nil {
						admitted += granted
					}
				}
				diff(t, "admitted", admitted, test.admit)
				diff(t, "failed", err != nil, test.fails)
				tries := store.calls.Load()
				pause(time.Minute)
				if tries = store.calls.Load() - tries; tries > 70 {
					t.Errorf("%d calls a minute to a store that is down", tries)
				}
				store.down.Store(false)
				pause(10 * time.Second)
				diff(t, "used in the store", used(t, store, hit.Rule, "k"), admitted+1)
				diff(t, "granted when it is back", spend(t, pods[0], hit, 1), 1)
			})
		})
	}
}

// What is given back is had again without a call, and reaches the shared count.
func TestSyncedGivesBack(t *testing.T) {
	for _, a := range syncedAlgorithms {
		l := limitOf(a, 10, 7200*time.Hour)
		for name, r := range map[string]*Rule{"percent": overshooting(l, 100), "interval": exchanging(l, time.Second)} {
			t.Run(string(a)+" by "+name, func(t *testing.T) {
				inPods(t, 1, func(t *testing.T, store *farStore, pods []*syncs) {
					hit := Hit{Rule: r, Key: "k", Cost: 2}
					diff(t, "granted by the store", spend(t, pods[0], hit, 1), 1)
					pods[0].giveBack(&hit, 1)
					diff(t, "granted", spend(t, pods[0], hit, 3), 3)
					pods[0].giveBack(&hit, 1)
					diff(t, "granted", spend(t, pods[0], hit, 10), 3)
					diff(t, "calls", store.calls.Load(), 1)
					pods[0].giveBack(&hit, 4)
					pause(3 * time.Second)
					diff(t, "used in the store", used(t, store, r, "k"), 2)
				})
			})
		}
	}
}

// C29: nothing grows without bound, however many keys there are and however slow
// the store is.
func TestViewsAreBounded(t *testing.T) {
	inPods(t, 1, func(t *testing.T, store *farStore, pods []*syncs) {
		hit := Hit{Rule: exchanging(limitOf(policy.FixedWindow, 10, time.Hour), time.Second), Key: "known", Cost: 1}
		spend(t, pods[0], hit, 1)
		pods[0].views.Store(maxViews)
		calls := store.calls.Load()
		hit.Key = "unknown"
		diff(t, "granted", spend(t, pods[0], hit, 12), 10)
		diff(t, "calls", store.calls.Load()-calls, 12)
		pods[0].giveBack(&hit, 3)
		synctest.Wait()
		diff(t, "used in the store", used(t, store, hit.Rule, "unknown"), 7)
		hit.Key = "known"
		diff(t, "granted", spend(t, pods[0], hit, 12), 9)
		pods[0].views.Store(1)
	})
}

func TestAViewOnASlowStoreHasOneExchangeUnderWay(t *testing.T) {
	inPods(t, 1, func(t *testing.T, store *farStore, pods []*syncs) {
		store.spoil(200*time.Millisecond, 0)
		hit := Hit{Rule: exchanging(limitOf(policy.FixedWindow, 1<<40, time.Hour), 10*time.Millisecond), Key: "k", Cost: 1}
		spend(t, pods[0], hit, 1)
		v := pods[0].lock(&hit)
		v.heardAt = never / 2 // it holds, however slow the store is
		v.mu.Unlock()
		calls := store.calls.Load()
		for range 5000 {
			spend(t, pods[0], hit, 1)
			time.Sleep(200 * time.Microsecond)
			v.mu.Lock()
			v.heardAt = never / 2
			v.mu.Unlock()
		}
		if n := store.calls.Load() - calls; n > 20 {
			t.Errorf("%d calls in a second, of 200 ms each", n)
		}
	})
}

func TestIdleViewsAreExchangedAndDropped(t *testing.T) {
	inPods(t, 1, func(t *testing.T, store *farStore, pods []*syncs) {
		r := overshooting(limitOf(policy.SlidingWindow, 1000, time.Hour), 50)
		for key := range 100 {
			spend(t, pods[0], Hit{Rule: r, Key: fmt.Sprint(key), Cost: 1}, 10)
		}
		pause(5 * time.Second)
		diff(t, "views", pods[0].views.Load(), 100)
		pause(6 * time.Second)
		diff(t, "views", pods[0].views.Load(), 0)
		diff(t, "used in the store", used(t, store, r, "42"), 10)
		calls := store.calls.Load()
		diff(t, "granted again", spend(t, pods[0], Hit{Rule: r, Key: "42", Cost: 1}, 1), 1)
		diff(t, "used in the store", used(t, store, r, "42"), 11)
		diff(t, "calls", store.calls.Load()-calls, 2)
	})
}

func TestCloseExchangesWhatIsLeft(t *testing.T) {
	inPods(t, 1, func(t *testing.T, store *farStore, pods []*syncs) {
		r := exchanging(limitOf(policy.FixedWindow, 100, time.Hour), time.Minute)
		for key := range 1000 {
			spend(t, pods[0], Hit{Rule: r, Key: fmt.Sprint(key), Cost: 1}, 10)
		}
		store.spoil(10*time.Millisecond, 0)
		pods[0].close(t.Context())
		for key := range 1000 {
			diff(t, "used in the store", used(t, store, r, fmt.Sprint(key)), 10)
		}
		diff(t, "views", pods[0].views.Load(), 0)
		calls := store.calls.Load()
		diff(t, "granted by the store", spend(t, pods[0], Hit{Rule: r, Key: "1", Cost: 1}, 2), 2)
		diff(t, "calls", store.calls.Load()-calls, 2)
	})
}

// Units of a window that has ended are not charged to the next one.
func TestALateExchangeDoesNotChargeTheNextWindow(t *testing.T) {
	inPods(t, 1, func(t *testing.T, store *farStore, pods []*syncs) {
		r := exchanging(limitOf(policy.FixedWindow, 100, time.Second), 700*time.Millisecond)
		hit := Hit{Rule: r, Key: "k", Cost: 1}
		time.Sleep(500 * time.Millisecond)
		diff(t, "granted", spend(t, pods[0], hit, 100), 100)
		pause(time.Second)
		diff(t, "used in the store", used(t, store, r, "k"), 0)
		diff(t, "granted", spend(t, pods[0], hit, 100), 100)
	})
}

// Window after window, three pods that are asked for thrice the limit admit about
// the limit.
func TestSyncedHoldsTheRateOfSteadyTraffic(t *testing.T) {
	anchored := limitOf(policy.FixedWindow, 60, time.Second)
	anchored.FirstRequest = true
	for name, l := range map[string]Limit{
		"FixedWindow":   limitOf(policy.FixedWindow, 60, time.Second),
		"FirstRequest":  anchored,
		"SlidingWindow": limitOf(policy.SlidingWindow, 60, time.Second),
		"TokenBucket":   limitOf(policy.TokenBucket, 60, time.Second),
	} {
		for how, r := range map[string]*Rule{
			"percent": overshooting(l, 20), "interval": exchanging(l, 50*time.Millisecond),
		} {
			t.Run(name+" by "+how, func(t *testing.T) {
				inPods(t, 3, func(t *testing.T, store *farStore, pods []*syncs) {
					store.spoil(2*time.Millisecond, 0)
					var admitted int64
					const seconds = 20
					for range seconds * 60 {
						for _, p := range pods {
							admitted += spend(t, p, Hit{Rule: r, Key: "k", Cost: 1}, 1)
						}
						time.Sleep(time.Second / 60)
					}
					if admitted < seconds*60*92/100 || admitted > seconds*60*115/100 {
						t.Errorf("%d were admitted in %d s, limit 60 a second", admitted, seconds)
					}
					t.Logf("%d of %d, %d calls", admitted, seconds*60, store.calls.Load())
				})
			})
		}
	}
}

// The numbers of a limit can change while it is counted.
func TestSyncedKeepsWhatIsUsedWhenNumbersChange(t *testing.T) {
	for _, a := range syncedAlgorithms {
		t.Run(string(a), func(t *testing.T) {
			inPods(t, 1, func(t *testing.T, store *farStore, pods []*syncs) {
				l := limitOf(a, 100, 720*time.Hour)
				hit := Hit{Rule: overshooting(l, 10), Key: "k", Cost: 1}
				diff(t, "granted", spend(t, pods[0], hit, 50), 50)
				l.Requests, l.Burst = 60, 60
				hit.Rule = overshooting(l, 10)
				// A bucket loses less than a unit when it is rescaled.
				if n := spend(t, pods[0], hit, 100); n < 10 || n > 11 {
					t.Errorf("%d of 10 were granted", n)
				}
			})
		})
	}
}

func TestSyncedAllocatesNothing(t *testing.T) {
	for _, a := range syncedAlgorithms {
		s := newSyncs(NewMemory(time.Now), (&pod{live: 3}).where, Events{}, time.Now)
		hit := Hit{Rule: exchanging(limitOf(a, 1<<40, time.Hour), time.Minute), Key: "k", Cost: 1}
		spend(t, s, hit, 1)
		allocations := testing.AllocsPerRun(1000, func() {
			if granted, _, err := s.take(t.Context(), &hit, 1, 0); granted != 1 || err != nil {
				t.Fatal(granted, err)
			}
		})
		if allocations > 0 {
			t.Errorf("%s: %v allocations per decision", a, allocations)
		}
		s.close(t.Context())
	}
}

func BenchmarkSynced(b *testing.B) {
	s := newSyncs(NewMemory(time.Now), (&pod{live: 3}).where, Events{}, time.Now)
	defer s.close(b.Context())
	hit := Hit{Rule: overshooting(limitOf(policy.SlidingWindow, 1<<50, time.Hour), 10), Key: "k", Cost: 1}
	b.ReportAllocs()
	for b.Loop() {
		_, _, _ = s.take(b.Context(), &hit, 1, 0)
	}
}

// The same on a real Redis, and with callers at once.
func TestSyncedOnRedisStaysWithinItsBound(t *testing.T) {
	store, _ := live(t, testredis.Shared(t))
	for _, a := range syncedAlgorithms {
		t.Run(string(a), func(t *testing.T) {
			l := limitOf(a, 2000, 7200*time.Hour)
			hit := Hit{Rule: overshooting(l, 10), Key: keyOf(t, l), Cost: 1}
			pods := syncedPods(store, 4, Events{})
			var admitted atomic.Int64
			var wg sync.WaitGroup
			for place, p := range pods {
				for range 1 + place {
					wg.Go(func() { admitted.Add(spend(t, p, hit, 1000)) })
				}
			}
			wg.Wait()
			leaveAll(t, pods)
			if n := admitted.Load(); n < 2000 || n > 2200 {
				t.Errorf("%d were admitted, limit 2000, bound 2200", n)
			}
			diff(t, "remaining", peek(t, store, hit)[0].Remaining, 0)
		})
	}
}
