package store_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/store"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

func TestPublishingTheSameAgainWritesNothing(t *testing.T) {
	server := testredis.Start(t)
	s, client := connect(t, server.URL(), store.DefaultPrefix)
	publish(t, s, "shop", definition("shop", "orders", 1))
	publish(t, s, "bank") // a deletion of nothing
	client.ConfigResetStat(t.Context())

	publish(t, s, "shop", definition("shop", "orders", 1))
	publish(t, s, "bank")
	stats := client.InfoMap(t.Context(), "commandstats").Item
	for _, command := range []string{"set", "del", "hset", "hdel", "sadd", "srem", "publish"} {
		if calls := stats("Commandstats", "cmdstat_"+command); calls != "" {
			t.Errorf("%s was called: %s", command, calls)
		}
	}
}

// Lua and Go must agree on what a revision is, else a publish finds one that
// nobody can read and leaves it.
func TestPublishBeginsAnEpochWhereTheRevisionIsNone(t *testing.T) {
	for _, garbage := range []string{
		"", "-", "1", "1-", "-1", "0-0", "0-1", "1-0", "1.5-1", "1--1", " 1-1", "1-1 ", "1e3-1", "soon",
		"99999999999999999999-1", "1-99999999999999999999", "9007199254740992-1", "1-9007199254740992",
		"1-9007199254740991", // it has no next one
		"00000000000000000001-1", strings.Repeat("9", 10_000) + "-1",
	} {
		s, client, prefix := sharedStore(t)
		begun := client.Time(t.Context()).Val().UnixMicro()
		publish(t, s, "shop", definition("shop", "orders", 1))
		client.Set(t.Context(), prefix+":revision:{shop}", garbage, 0)

		p := publish(t, s, "shop", definition("shop", "orders", 1))
		if !p.Changed || p.Revision.Epoch < begun || p.Revision.Number != 1 {
			t.Errorf("published %+v over the revision %.40q", p, garbage)
		}
		if loaded := load(t, s, "shop"); loaded.Revision != p.Revision {
			t.Errorf("loaded %v, published %v", loaded.Revision, p.Revision)
		}
	}
}

func TestGarbageForARevisionIsNone(t *testing.T) {
	s, client, prefix := sharedStore(t)
	publish(t, s, "shop", definition("shop", "orders", 1))
	key := prefix + ":revision:{shop}"
	spoil := map[string]func(){
		"text": func() { client.Set(t.Context(), key, "\x00soon", 0) },
		"list": func() { client.Del(t.Context(), key); client.LPush(t.Context(), key, 1) },
	}
	for name, spoil := range spoil {
		spoil()
		if snapshot := load(t, s, "shop"); !snapshot.Revision.IsZero() || len(snapshot.Definitions) != 0 {
			t.Errorf("%s: loaded %+v", name, snapshot)
		}
	}
}

// A replica that becomes the master may lack the last writes. If it counted on
// from its own number, a revision that enforcers know would name other
// definitions, and they would never load them.
func TestARevisionLostInAFailoverIsNotGivenToOtherDefinitions(t *testing.T) {
	s, client, prefix := sharedStore(t)
	publish(t, s, "shop", definition("shop", "orders", 1))
	key := prefix + ":revision:{shop}"
	policies := client.HGetAll(t.Context(), prefix+":policies:{shop}").Val()
	// The namespace was first published an hour ago.
	epoch := client.Time(t.Context()).Val().Add(-time.Hour).UnixMicro()
	old := store.Revision{Epoch: epoch, Number: 4}
	client.Set(t.Context(), key, old.String(), 0)

	lost := publish(t, s, "shop", definition("shop", "orders", 2))
	if lost.Revision.Epoch != epoch || lost.Revision.Number < time.Hour.Milliseconds() {
		t.Fatalf("published %v after %v", lost.Revision, old)
	}
	client.Set(t.Context(), key, old.String(), 0)
	client.HSet(t.Context(), prefix+":policies:{shop}", policies)
	begun := client.Time(t.Context()).Val()
	for client.Time(t.Context()).Val().Sub(begun) < 2*time.Millisecond { // as any failover takes
		continue
	}
	if p := publish(t, s, "shop", definition("shop", "orders", 3)); p.Revision.Compare(lost.Revision) <= 0 {
		t.Errorf("published %v, the lost one was %v", p.Revision, lost.Revision)
	}
}

func TestRevisionsIncreaseHoweverFastTheyCome(t *testing.T) {
	s, _, _ := sharedStore(t)
	var last store.Revision
	for generation := range int64(100) {
		p := publish(t, s, "shop", definition("shop", "orders", generation))
		if p.Revision.Compare(last) <= 0 {
			t.Fatalf("published %v after %v", p.Revision, last)
		}
		last = p.Revision
	}
}

func TestDefinitionsThatNobodyCouldLoadAreNotPublished(t *testing.T) {
	large := definition("shop", "large", 1)
	large.Spec.Response.Body = strings.Repeat("x", policy.MaxDefinitionSize)
	for name, definitions := range map[string][]policy.Definition{
		"two of one name":   {definition("shop", "orders", 1), definition("shop", "orders", 2)},
		"another namespace": {definition("bank", "orders", 1)},
		"no name":           {definition("shop", "", 1)},
		"too large":         {large},
		"too many":          make([]policy.Definition, store.MaxDefinitions+1),
	} {
		s, client, prefix := sharedStore(t)
		if _, err := s.Publish(t.Context(), "shop", definitions); err == nil {
			t.Errorf("%s: published", name)
		}
		if n := client.Exists(t.Context(), prefix+":policies:{shop}", prefix+":revision:{shop}", prefix+":namespaces").Val(); n != 0 {
			t.Errorf("%s: wrote %d keys", name, n)
		}
	}
}

// A Redis that is full refuses some commands. A publish is then refused or done,
// and never takes away what was there.
func TestAFullRedisHasNoHalfPublish(t *testing.T) {
	server := testredis.Start(t, "--maxmemory-policy", "noeviction")
	s, client := connect(t, server.URL(), store.DefaultPrefix)
	publish(t, s, "shop", definition("shop", "orders", 1), definition("shop", "login", 1))
	client.ConfigSet(t.Context(), "maxmemory", "1")

	_, err := s.Publish(t.Context(), "shop", []policy.Definition{definition("shop", "orders", 2)})
	want := map[string]int64{"orders": 2}
	if err != nil {
		want = map[string]int64{"orders": 1, "login": 1}
	}
	if got := generations(load(t, s, "shop")); !maps.Equal(got, want) {
		t.Errorf("after a publish with error %v: %s", err, cmp.Diff(want, got))
	}
}
