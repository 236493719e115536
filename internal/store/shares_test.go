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
	shares, err := f.store.Pulse("shop").Beat(f.Context(), h)
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
	f.client.ZAddXX(f.Context(), key, redis.Z{Score: float64(seen), Member: pod})
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
	shares, err := f.store.Pulse("bank").Beat(t.Context(), store.Heartbeat{Pod: "b", Policies: map[string]int64{"orders": 1}})
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
		"an unreadable report": func(f *fleet, key func(string) string) { f.client.HSet(f.Context(), key("enforcers"), "a", "1 ab {{") },
		"a report of another shape": func(f *fleet, key func(string) string) {
			f.client.HSet(f.Context(), key("enforcers"), "a", `1 ab {"policies":[[],7,"orders"]}`)
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

// A pulse says at length only what is new, and knows of all changes nevertheless.
func TestAPulseKnowsWhatOthersChange(t *testing.T) {
	f := newFleet(t)
	h := store.Heartbeat{Pod: "b", Policies: map[string]int64{"orders": 1, "login": 1}}
	pulse := f.store.Pulse("shop")
	want := func(orders store.Share) {
		t.Helper()
		shares, err := pulse.Beat(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		f.want(shares, map[string]store.Share{"orders": orders, "login": {Live: 1}})
	}
	want(store.Share{Live: 1})
	want(store.Share{Live: 1})
	f.beat("a", "orders")
	want(store.Share{Live: 2, Place: 1})
	f.beat("c", "orders")
	f.age("a", store.EnforcerTimeout)
	want(store.Share{Live: 2})
	if err := f.store.Leave(t.Context(), "shop", "c"); err != nil {
		t.Fatal(err)
	}
	want(store.Share{Live: 1})
	f.age("b", store.EnforcerTimeout) // itself: others may have forgotten it already
	f.beat("c", "orders")
	want(store.Share{Live: 2})
}

func TestAPulseSaysItAllAgainToAStoreThatLostIt(t *testing.T) {
	for _, lost := range [][]string{{"enforcers"}, {"places"}, {"seen"}, {"enforcers", "places", "seen"}} {
		t.Run(strings.Join(lost, " and "), func(t *testing.T) {
			f := newFleet(t)
			h := store.Heartbeat{Pod: "b", Policies: map[string]int64{"orders": 7}}
			pulse := f.store.Pulse("shop")
			for range 2 {
				if _, err := pulse.Beat(t.Context(), h); err != nil {
					t.Fatal(err)
				}
				for _, key := range lost {
					f.client.Del(t.Context(), f.prefix+":"+key+":{shop}")
				}
			}
			shares, err := pulse.Beat(t.Context(), h)
			if err != nil {
				t.Fatal(err)
			}
			f.want(shares, map[string]store.Share{"orders": {Live: 1}})
			enforcers, err := f.store.Enforcers(t.Context(), "shop")
			if err != nil || len(enforcers) != 1 || enforcers[0].Policies["orders"] != 7 {
				t.Errorf("enforcers: %+v, %v", enforcers, err)
			}
		})
	}
}

// What a pulse has said is replaced by what it says next, also if a process of the
// same pod has said something else meanwhile.
func TestAPulseReplacesAReport(t *testing.T) {
	f := newFleet(t)
	pulse := f.store.Pulse("shop")
	for generation := range int64(3) {
		f.beat("b", "login")
		if _, err := pulse.Beat(t.Context(), store.Heartbeat{Pod: "b", Policies: map[string]int64{"orders": generation / 2}}); err != nil {
			t.Fatal(err)
		}
		enforcers, err := f.store.Enforcers(t.Context(), "shop")
		if err != nil || len(enforcers) != 1 {
			t.Fatalf("enforcers: %+v, %v", enforcers, err)
		}
		if diff := cmp.Diff(map[string]int64{"orders": generation / 2}, enforcers[0].Policies); diff != "" {
			t.Error(diff)
		}
	}
	f.want(f.beat("a", "orders", "login"), map[string]store.Share{"orders": {Live: 2}, "login": {Live: 1}})
}

// A heartbeat with nothing new costs the store the same for any number of policies,
// and of pods.
func TestAPulseIsCheap(t *testing.T) {
	server := testredis.Start(t)
	s, client := connect(t, server.URL(), store.DefaultPrefix)
	pulses, beats := make([]*store.Pulse, 1000), make([]store.Heartbeat, 1000)
	policies := map[string]int64{}
	for i := range 100 {
		policies[fmt.Sprintf("policy-of-the-shop-%d", i)] = int64(i)
	}
	round := func() {
		for i, pulse := range pulses {
			if _, err := pulse.Beat(t.Context(), beats[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range pulses {
		pulses[i] = s.Pulse("shop")
		beats[i] = store.Heartbeat{Pod: fmt.Sprintf("checkout-7d9c6b5f4d-%05d", i), Policies: policies}
	}
	round() // all join,
	round() // and learn of each other
	before := statistics(t, client)
	round()
	after := statistics(t, client)
	calls, micros, bytes := after.calls-before.calls, after.micros-before.micros, after.bytes-before.bytes
	if calls != 1000 || bytes/calls > 500 || micros/calls > 500 {
		t.Errorf("%d heartbeats: each took Redis %d µs and was of %d bytes", calls, micros/calls, bytes/calls)
	}
	t.Logf("a heartbeat with nothing new takes Redis %d µs and has %d bytes", micros/calls, bytes/calls)
}

// statistic is what a server has done so far.
type statistic struct{ calls, micros, bytes int64 }

func statistics(t *testing.T, client redis.UniversalClient) (s statistic) {
	t.Helper()
	for line := range strings.Lines(client.Info(t.Context(), "commandstats").Val()) {
		if _, err := fmt.Sscanf(line, "cmdstat_evalsha:calls=%d,usec=%d,", &s.calls, &s.micros); err == nil {
			break
		}
	}
	for line := range strings.Lines(client.Info(t.Context(), "stats").Val()) {
		if _, err := fmt.Sscanf(line, "total_net_input_bytes:%d", &s.bytes); err == nil {
			break
		}
	}
	return s
}
