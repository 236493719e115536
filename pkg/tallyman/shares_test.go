package tallyman

import (
	"strconv"
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/internal/store"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

func (f *follower) wantShare(t *testing.T, what string, live, place int) {
	t.Helper()
	if l, p := f.share("orders"); l != live || p != place {
		t.Fatalf("%s: place %d of %d, want %d of %d", what, p, l, place, live)
	}
}

// More pods are heeded at once. Fewer are when they are still fewer after a
// while: a store that lost its data does not know of all yet.
func TestSharesOfFewerPodsAreTakenLater(t *testing.T) {
	f := &follower{}
	f.wantShare(t, "before the store has told", 0, 0)
	now := time.Now()
	told := func(live, place int) {
		f.takeShares(map[string]store.Share{"orders": {Live: live, Place: place}}, now)
	}
	told(10, 7)
	f.wantShare(t, "at first", 10, 7)
	told(12, 8)
	f.wantShare(t, "with more", 12, 8)
	now = now.Add(time.Millisecond)
	told(1, 0) // the store has been restarted empty
	f.wantShare(t, "with fewer", 12, 8)
	now = now.Add(store.BeatInterval)
	told(12, 6)
	f.wantShare(t, "with as many", 12, 6)
	now = now.Add(store.BeatInterval)
	told(11, 6)
	f.wantShare(t, "with one fewer", 12, 6)
	now = now.Add(store.BeatInterval)
	told(11, 6)
	f.wantShare(t, "with one fewer, later", 11, 6)
	f.takeShares(map[string]store.Share{}, now)
	f.wantShare(t, "without the policy", 0, 0)
}

// The first pod that takes over a policy finds no other that has. It asks again before
// its next heartbeat is due, or it would take all of the limit for itself until then.
func TestPodsOfANewPolicyLearnOfEachOtherSoon(t *testing.T) {
	m := newManager(t, testredis.Shared(t))
	m.publish()
	var limiters []*Limiter
	for i := range 3 {
		limiters = append(limiters, m.open(Options{Pod: "orders-" + strconv.Itoa(i)}))
	}
	m.publish(definition(t, "orders", 1, patient("10")))
	began := time.Now()
	for place, l := range limiters {
		eventually(t, "the share of "+strconv.Itoa(place), func() bool {
			live, at := l.follower.share("orders")
			return live == 3 && at == place
		})
	}
	if took := time.Since(began); took > 2*store.BeatInterval/3 {
		t.Errorf("the pods learned of each other after %v, as if they had waited for their heartbeats", took)
	}
}

// Limiters find each other, and share among those that enforce a policy.
func TestLimitersLearnOfEachOther(t *testing.T) {
	m := newManager(t, testredis.Shared(t))
	m.publish(definition(t, "orders", 1, patient("10")))
	var limiters []*Limiter
	for i := range 3 {
		limiters = append(limiters, m.open(Options{Pod: "orders-" + strconv.Itoa(i)}))
	}
	m.publish(definition(t, "orders", 2, patient("10"))) // has all of them report at once
	for place, l := range limiters {
		m.awaitGeneration(l, "orders", 2)
		eventually(t, "the share of "+strconv.Itoa(place), func() bool {
			live, at := l.follower.share("orders")
			return live == 3 && at == place
		})
	}
	if live, _ := limiters[0].follower.share("login"); live != 0 {
		t.Errorf("%d pods share a policy that there is not", live)
	}
}
