package limiter

import (
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// An answer does not know of what was admitted since the exchange began.
func TestUnitsAdmittedDuringAnExchangeStayInTheView(t *testing.T) {
	inPods(t, 1, func(t *testing.T, store *farStore, pods []*syncs) {
		hit := Hit{Rule: exchanging(limitOf(policy.SlidingWindow, 100, time.Hour), 100*time.Millisecond), Key: "k", Cost: 1}
		diff(t, "granted", spend(t, pods[0], hit, 50), 50)
		store.spoil(40*time.Millisecond, 0)
		pause(100 * time.Millisecond) // the exchange begins
		diff(t, "granted", spend(t, pods[0], hit, 30), 30)
		pause(90 * time.Millisecond) // it has ended
		diff(t, "granted", spend(t, pods[0], hit, 100), 20)
	})
}

// What the store grants in the course of an exchange may be in its answer or
// not. It is counted twice rather than not at all, and until the next exchange
// a refusal is not the view's to decide.
func TestUnitsGrantedDuringAnExchangeMakeAViewUnsure(t *testing.T) {
	const clock = 1000
	r := overshooting(limitOf(policy.FixedWindow, 10, time.Hour), 100)
	hit := Hit{Rule: r, Key: "k", Cost: 1}
	v := &view{key: "k", rule: r}
	exchange := func(used int64, meanwhile func()) {
		c := v.begin(clock, func() string { return "token" })
		meanwhile()
		c.states = []state{{now: epoch, at: epoch, used: used}}
		v.end(c, nil, clock)
	}
	granted := func(units int64, news int) {
		v.answered(&Call{Hits: []Hit{hit}, Granted: units}, news, clock)
	}
	refusal := func(remaining int64, final bool) {
		t.Helper()
		_, r, sure := v.decide(&Hit{Rule: r, Cost: 10}, 1, 10, clock)
		if r.Allowed || r.Remaining != remaining || sure != final {
			t.Fatalf("%+v, final: %t", r, sure)
		}
	}

	exchange(1, func() {})
	refusal(9, true)
	granted(2, v.news)
	refusal(7, true)
	exchange(3, func() { granted(2, v.news) })
	refusal(5, false)
	exchange(5, func() { granted(0, v.news) })
	refusal(5, true)
	granted(1, v.news-1) // it was asked before the exchange
	refusal(4, false)
	exchange(6, func() {})
	refusal(4, true)
}

// Exchanges live on what stores say of a counter after a call.
func TestStoresTellStatesAfterTheCall(t *testing.T) {
	for _, a := range syncedAlgorithms {
		t.Run(string(a), func(t *testing.T) {
			onBothStores(t, func(t *testing.T, s Store, c *clock) {
				l := limitOf(a, 10, time.Minute)
				hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
				for i, step := range []struct {
					op               Op
					token            string
					count, remaining int64
					again            bool
				}{
					{op: Peek, count: 1, remaining: 10},
					{op: Take, count: 3, remaining: 7},
					{op: Charge, token: "a", count: 2, remaining: 5},
					{op: Charge, token: "a", count: 2, remaining: 5, again: true},
					{op: Refund, token: "b", count: 4, remaining: 9},
					{op: Refund, token: "b", count: 4, remaining: 9, again: true},
					{op: Take, count: 20, remaining: 0},
					{op: Charge, token: "c", count: 1, remaining: 0},
				} {
					call := do(t, s, Call{Op: step.op, Hits: []Hit{hit}, Count: step.count, Token: step.token, wantStates: true})
					after := call.states[0]
					if got := hit.Rule.remaining(after); got != step.remaining || after.now != c.micros {
						t.Errorf("step %d: %+v leaves %d, want %d at %d", i, after, got, step.remaining, c.micros)
					}
					if step.token != "" && call.done == step.again {
						t.Errorf("step %d: done: %t", i, call.done)
					}
				}
			})
		})
	}
}
