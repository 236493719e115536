package limiter

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// Other limiters' vectors of several nodes, and those of a node that does without
// the store, see vectors_test.go.

// runNodes has nodes count in views that are exchanged. They agree on when the
// window ends.
func runNodes(t *testing.T, v vector) {
	inPods(t, int(v.Params.get("nodes")), func(t *testing.T, _ *farStore, pods []*syncs) {
		l := limitOf(policy.FixedWindow, v.Params.get("limit"), time.Duration(v.Params.get("window_ms"))*time.Millisecond)
		r := exchanging(l, 100*time.Millisecond)
		began := time.Now()
		for i, step := range v.Steps {
			if step.Op == "sync_all" {
				pause(200 * time.Millisecond)
				continue
			}
			place := step.Node[0] - 'A'
			hit := Hit{Rule: r, Key: "k", Cost: step.Cost}
			_, result, err := pods[place].take(t.Context(), &hit, 1, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			checkStep(t, v, i, result)
			diff(t, "the window's end", time.Since(began)+result.ResetAfter, l.Window)
		}
	})
}

// runGreedyNodes: where each node may spend all that was left when it looked,
// five admit 250 of 100. Here leases are parts of what is left, and views ask the
// store before they spend what is not known to be there.
func runGreedyNodes(t *testing.T, v vector) {
	for _, d := range []policy.Distribution{
		{Mode: policy.Leased, MaxIdlePercent: 10}, {Mode: policy.Synced, MaxOvershootPercent: 10},
	} {
		t.Run(string(d.Mode), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &countingStore{Store: NewMemory(time.Now)}
				r := rule(limitOf(policy.FixedWindow, v.Params.get("limit"), time.Hour))
				r.distribution = d
				var units int64
				nodes := map[string]*Engine{}
				for i, step := range v.Steps {
					if step.Op == "sync_all" {
						pause(time.Minute)
						continue
					}
					if nodes[step.Node] == nil {
						nodes[step.Node] = NewEngine(s, EngineOptions{Pods: pods(int(v.Params.get("nodes")))})
						t.Cleanup(func() { nodes[step.Node].Close(context.Background()) })
					}
					c := do(t, nodes[step.Node], Call{Hits: []Hit{{Rule: r, Key: "k", Cost: step.Cost}}})
					units += c.Granted * step.Cost
					if i == len(v.Steps)-1 {
						checkStep(t, v, i, c.Results[0])
					}
				}
				diff(t, "units", units, v.Params.get("limit"))
			})
		})
	}
}

func runNodesRefund(t *testing.T, v vector) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := engineOver(t, 1)
		l := limitOf(policy.FixedWindow, v.Params.get("limit"), time.Hour)
		refundAboveTheLimit(t, v, e, Hit{Rule: exchanging(l, 100*time.Millisecond), Key: "k"})
	})
}

// runAlternatingNodes: of two nodes that take turns, both are refused once the
// limit has been admitted and exchanged.
func runAlternatingNodes(t *testing.T, v vector) {
	inPods(t, int(v.Params.get("nodes")), func(t *testing.T, _ *farStore, pods []*syncs) {
		l := limitOf(policy.FixedWindow, v.Params.get("limit"), time.Duration(v.Params.get("window_ms"))*time.Millisecond)
		hit := Hit{Rule: exchanging(l, 100*time.Millisecond), Key: "k", Cost: 1}
		var admitted int64
		for turn := range 10 {
			admitted += spend(t, pods[turn%len(pods)], hit, 1)
			pause(200 * time.Millisecond)
		}
		diff(t, "admitted", admitted, l.Requests)
	})
}

// runRefusalMemory: what is known to be refused does not reach the store. Shadows
// do: they are counted there.
func runRefusalMemory(t *testing.T, v vector) {
	synctest.Test(t, func(t *testing.T) {
		e, store := engineOver(t, 1)
		hit := Hit{Rule: planned(t, perMinute(v.Params.get("limit"), policy.Exact, policy.FailureBackstop)), Key: "k", Cost: 2}
		diff(t, "admitted", admitted(t, e, 10, hit), 2)
		hit.Cost = 1
		diff(t, "admitted of the rest", admitted(t, e, 10, hit), 1)

		store.calls.Store(0)
		for i, step := range v.Steps {
			hit.Cost, hit.Shadow = step.Cost, step.Shadow
			c := do(t, e, Call{Hits: []Hit{hit}})
			diff(t, "allowed", c.Granted == 1, *step.Expect.Allowed)
			diff(t, "remaining", c.Results[0].Remaining, *step.Expect.Remaining)
			if !step.Shadow && store.calls.Load() != 0 {
				t.Fatalf("step %d: %d calls of the store", i, store.calls.Load())
			}
		}
	})
}

// runWithoutLimits: a request that meets no limit, or whose limit exempts it, has
// no hits, and asks no store.
func runWithoutLimits(t *testing.T, v vector) {
	synctest.Test(t, func(t *testing.T) {
		e, store := engineOver(t, 1)
		for range v.Steps {
			c := do(t, e, Call{})
			diff(t, "granted", c.Granted, 1)
			diff(t, "results", len(c.Results), 0)
		}
		diff(t, "calls", store.calls.Load(), 0)
	})
}
