package store_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/store"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// fleet is the enforcers of a namespace in a test.
type fleet struct {
	*testing.T
	store  *store.Store
	client redis.UniversalClient
	prefix string
}

func newFleet(t *testing.T) *fleet {
	s, client, prefix := sharedStore(t)
	return &fleet{T: t, store: s, client: client, prefix: prefix}
}

// beat is a heartbeat of a pod that enforces the policies.
func (f *fleet) beat(pod string, policies ...string) map[string]store.Share {
	f.Helper()
	h := store.Heartbeat{Pod: pod, Policies: map[string]int64{}}
	for _, name := range policies {
		h.Policies[name] = 1
	}
	shares, err := f.store.Beat(f.Context(), "shop", h)
	if err != nil {
		f.Fatal(err)
	}
	return shares
}

func (f *fleet) want(got map[string]store.Share, want map[string]store.Share) {
	f.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		f.Fatal(diff)
	}
}

// age makes the store believe that the last heartbeats of a pod are so old.
func (f *fleet) age(pod string, by time.Duration) {
	f.Helper()
	key := f.prefix + ":seen:{shop}"
	seen := f.client.Time(f.Context()).Val().Add(-by).UnixMicro()
	for _, member := range f.client.ZRange(f.Context(), key, 0, -1).Val() {
		if member == "orders/"+pod {
			f.client.ZAdd(f.Context(), key, redis.Z{Score: float64(seen), Member: member})
		}
	}
}

func TestSharesFollowThePodsOfAPolicy(t *testing.T) {
	f := newFleet(t)
	f.want(f.beat("b", "orders"), map[string]store.Share{"orders": {Live: 1}})
	// Names that begin alike are told apart: of policies, and of pods.
	f.want(f.beat("b-1", "orders", "orders-eu", "order"), map[string]store.Share{
		"orders": {Live: 2, Place: 1}, "orders-eu": {Live: 1}, "order": {Live: 1},
	})
	f.want(f.beat("a", "orders"), map[string]store.Share{"orders": {Live: 3}})
	f.want(f.beat("b", "orders"), map[string]store.Share{"orders": {Live: 3, Place: 1}})
	f.want(f.beat("z", "login"), map[string]store.Share{"login": {Live: 1}})
	f.want(f.beat("z"), map[string]store.Share{})

	t.Run("that leave", func(t *testing.T) {
		if err := f.store.Leave(t.Context(), "shop", "a"); err != nil {
			t.Fatal(err)
		}
		f.want(f.beat("b", "orders"), map[string]store.Share{"orders": {Live: 2}})
	})
	t.Run("that enforce it no more", func(t *testing.T) {
		f.beat("b-1", "orders-eu")
		f.want(f.beat("b", "orders", "orders-eu"), map[string]store.Share{
			"orders": {Live: 1}, "orders-eu": {Live: 2},
		})
	})
	t.Run("that fall silent", func(t *testing.T) {
		f.beat("c", "orders")
		f.beat("d", "orders")
		f.age("c", store.EnforcerTimeout-time.Second)
		f.want(f.beat("d", "orders"), map[string]store.Share{"orders": {Live: 3, Place: 2}})
		f.age("c", store.EnforcerTimeout)
		f.want(f.beat("d", "orders"), map[string]store.Share{"orders": {Live: 2, Place: 1}})
	})
	t.Run("and that come back", func(t *testing.T) {
		f.want(f.beat("c", "orders"), map[string]store.Share{"orders": {Live: 3, Place: 1}})
	})
}

func TestSharesAreOfANamespace(t *testing.T) {
	f := newFleet(t)
	f.beat("a", "orders")
	shares, err := f.store.Beat(t.Context(), "bank", store.Heartbeat{Pod: "b", Policies: map[string]int64{"orders": 1}})
	if err != nil {
		t.Fatal(err)
	}
	f.want(shares, map[string]store.Share{"orders": {Live: 1}})
}

func TestSharesEndByThemselves(t *testing.T) {
	f := newFleet(t)
	f.beat("a", "orders")
	for _, key := range []string{"places", "seen"} {
		if ttl := f.client.PTTL(t.Context(), f.prefix+":"+key+":{shop}").Val(); ttl <= 0 || ttl > time.Minute {
			t.Errorf("%s end in %v", key, ttl)
		}
	}
}

// What is not as a heartbeat leaves it is built anew.
func TestSharesSurviveGarbage(t *testing.T) {
	for name, spoil := range map[string]func(f *fleet, key func(string) string){
		"keys of another type": func(f *fleet, key func(string) string) {
			for _, k := range []string{"places", "seen", "enforcers"} {
				f.client.Set(f.Context(), key(k), "garbage", 0)
			}
		},
		"half of it lost":      func(f *fleet, key func(string) string) { f.client.Del(f.Context(), key("seen")) },
		"the other half lost":  func(f *fleet, key func(string) string) { f.client.Del(f.Context(), key("places")) },
		"an unreadable report": func(f *fleet, key func(string) string) { f.client.HSet(f.Context(), key("enforcers"), "a", "1 {{") },
		"a report of another shape": func(f *fleet, key func(string) string) {
			f.client.HSet(f.Context(), key("enforcers"), "a", `1 {"policies":[[],7,"orders"]}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			f.beat("a", "orders")
			f.beat("b", "orders")
			spoil(f, func(k string) string { return f.prefix + ":" + k + ":{shop}" })
			f.beat("a", "orders", "login")
			f.want(f.beat("b", "orders"), map[string]store.Share{"orders": {Live: 2, Place: 1}})
		})
	}
}

// A policy may be enforced by many pods, and a pod may enforce many policies.
func TestManyShares(t *testing.T) {
	f := newFleet(t)
	policies := make([]string, 2500)
	for i := range policies {
		policies[i] = "policy-" + strconv.Itoa(i)
	}
	f.beat("a", policies...)
	shares := f.beat("b", policies...)
	if len(shares) != len(policies) || shares["policy-2499"] != (store.Share{Live: 2, Place: 1}) {
		t.Errorf("%d shares, the last is %+v", len(shares), shares["policy-2499"])
	}
	f.beat("a")
	f.want(f.beat("b", "policy-7"), map[string]store.Share{"policy-7": {Live: 1}})
}

// populate has pods beat that enforce twenty policies each.
func populate(tb testing.TB, s *store.Store, pods int) store.Heartbeat {
	h := store.Heartbeat{Policies: map[string]int64{}, Version: "v1.2.3"}
	for i := range 20 {
		h.Policies[fmt.Sprintf("policy-of-the-shop-%d", i)] = int64(i)
	}
	for i := range pods {
		h.Pod = fmt.Sprintf("checkout-7d9c6b5f4d-%05d", i)
		if _, err := s.Beat(tb.Context(), "shop", h); err != nil {
			tb.Fatal(err)
		}
	}
	return h
}

// The store's time for a heartbeat does not follow the number of pods.
func TestABeatIsCheapAmongAThousandPods(t *testing.T) {
	server := testredis.Start(t)
	s, client := connect(t, server.URL(), store.DefaultPrefix)
	h := populate(t, s, 1000)
	const beats = 200
	client.ConfigResetStat(t.Context())
	for range beats {
		if _, err := s.Beat(t.Context(), "shop", h); err != nil {
			t.Fatal(err)
		}
	}
	var calls, micros int64
	for line := range strings.Lines(client.Info(t.Context(), "commandstats").Val()) {
		if _, err := fmt.Sscanf(line, "cmdstat_evalsha:calls=%d,usec=%d,", &calls, &micros); err == nil {
			break
		}
	}
	if calls != beats || micros/calls > 2000 {
		t.Errorf("%d heartbeats took Redis %d µs", calls, micros)
	}
	t.Logf("a heartbeat of 20 policies among 1,000 pods takes Redis %d µs", micros/max(1, calls))
}
