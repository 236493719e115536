package store_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/store"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect returns a store on the server, with a client that ends with the test.
func connect(t *testing.T, url, prefix string) (*store.Store, redis.UniversalClient) {
	t.Helper()
	client, err := store.Connect(store.ConnectOptions{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return store.New(client, prefix), client
}

func sharedStore(t *testing.T) (*store.Store, redis.UniversalClient, string) {
	t.Helper()
	prefix := testredis.Prefix(t)
	s, client := connect(t, testredis.Shared(t).URL(), prefix)
	return s, client, prefix
}

// definition is a valid one whose generation tells it apart.
func definition(ns, name string, generation int64) policy.Definition {
	spec := policy.Spec{
		Selector: &policy.Selector{},
		Limits:   []policy.Limit{{Name: "all", Requests: new(int64(100)), Window: policy.Duration(time.Minute)}},
	}
	spec.Default()
	return policy.Definition{
		Namespace: ns, Name: name, Generation: generation,
		Selectors: []policy.Selector{{}}, Spec: spec,
	}
}

func publish(t *testing.T, s *store.Store, ns string, definitions ...policy.Definition) store.Publication {
	t.Helper()
	p, err := s.Publish(t.Context(), ns, definitions)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func load(t *testing.T, s *store.Store, ns string) store.Snapshot {
	t.Helper()
	snapshot, err := s.Load(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	return snapshot
}

// generations are those of a snapshot, by name.
func generations(s store.Snapshot) map[string]int64 {
	all := map[string]int64{}
	for _, d := range s.Definitions {
		all[d.Name] = d.Generation
	}
	return all
}

func TestPublishedDefinitionsAreLoadedAsTheyWere(t *testing.T) {
	s, _, _ := sharedStore(t)
	want := definition("shop", "orders", 7)
	published := publish(t, s, "shop", want, definition("shop", "login", 1))

	snapshot := load(t, s, "shop")
	if snapshot.Revision != published.Revision || len(snapshot.Rejected) != 0 {
		t.Fatalf("loaded %+v after %+v", snapshot, published)
	}
	got := snapshot.Definitions[1]
	want.Schema, want.Hash = got.Schema, got.Hash
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestPublishIncreasesTheRevisionOnlyWhenSomethingChanged(t *testing.T) {
	s, client, prefix := sharedStore(t)
	first := publish(t, s, "shop", definition("shop", "orders", 1))
	again := publish(t, s, "shop", definition("shop", "orders", 1))
	if !first.Changed || again.Changed || again.Revision != first.Revision {
		t.Errorf("published %+v, then the same: %+v", first, again)
	}
	edited := publish(t, s, "shop", definition("shop", "orders", 2))
	if !edited.Changed || edited.Revision.Compare(first.Revision) <= 0 || edited.Revision.Epoch != first.Revision.Epoch {
		t.Errorf("published %+v, then an edit: %+v", first, edited)
	}
	if ttl := client.PTTL(t.Context(), prefix+":revision:{shop}").Val(); ttl > 0 {
		t.Errorf("the revision of a namespace with policies expires in %v", ttl)
	}
}

func TestReadersNeverSeeHalfAPublish(t *testing.T) {
	s, _, _ := sharedStore(t)
	publish(t, s, "shop", definition("shop", "a", 1), definition("shop", "b", 1))
	ctx, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for ctx.Err() == nil {
				snapshot, err := s.Load(t.Context(), "shop")
				if err != nil {
					t.Error(err)
					return
				}
				if g := generations(snapshot); len(g) != 2 || g["a"] != g["b"] {
					t.Errorf("saw generations %v", g)
					return
				}
			}
		})
	}
	for generation := range int64(200) {
		publish(t, s, "shop", definition("shop", "a", generation), definition("shop", "b", generation))
	}
	stop()
	readers.Wait()
}

func TestDeletionIsToldFromALostStore(t *testing.T) {
	server := testredis.Start(t)
	s, client := connect(t, server.URL(), store.DefaultPrefix)
	before := publish(t, s, "shop", definition("shop", "orders", 1))

	deleted := publish(t, s, "shop")
	if snapshot := load(t, s, "shop"); snapshot.Revision != deleted.Revision || len(snapshot.Definitions) != 0 {
		t.Errorf("after a deletion the store has %+v", snapshot)
	}
	if n := client.Exists(t.Context(), "tallyman:policies:{shop}").Val(); n != 0 {
		t.Error("the definitions of a namespace without policies stayed")
	}
	if ttl := client.PTTL(t.Context(), "tallyman:revision:{shop}").Val(); ttl <= 0 {
		t.Error("the revision of a namespace without policies stays for ever")
	}

	client.FlushAll(t.Context())
	if snapshot := load(t, s, "shop"); !snapshot.Revision.IsZero() {
		t.Errorf("a flushed store has revision %v", snapshot.Revision)
	}
	restored := publish(t, s, "shop", definition("shop", "orders", 1))
	if restored.Revision.Epoch <= before.Revision.Epoch {
		t.Errorf("the revision after the loss, %v, is not of a later epoch than %v", restored.Revision, before.Revision)
	}
}

func TestNamespacesWithDefinitionsAreListed(t *testing.T) {
	s, _, _ := sharedStore(t)
	publish(t, s, "shop", definition("shop", "orders", 1))
	publish(t, s, "bank", definition("bank", "orders", 1))
	publish(t, s, "shop")
	namespaces, err := s.Namespaces(t.Context())
	if diff := cmp.Diff([]string{"bank"}, namespaces); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

func TestInstallationsWithDifferentPrefixesNeverMeet(t *testing.T) {
	one, _, _ := sharedStore(t)
	other, _, _ := sharedStore(t)
	publish(t, one, "shop", definition("shop", "orders", 1))
	if snapshot := load(t, other, "shop"); !snapshot.Revision.IsZero() {
		t.Errorf("saw %+v of another installation", snapshot)
	}
}

func TestGarbageAmongDefinitionsIsRejectedAlone(t *testing.T) {
	s, client, prefix := sharedStore(t)
	publish(t, s, "shop", definition("shop", "orders", 1))
	foreign, err := definition("bank", "moved", 1).Encode()
	if err != nil {
		t.Fatal(err)
	}
	own, err := definition("shop", "cut", 1).Encode()
	if err != nil {
		t.Fatal(err)
	}
	client.HSet(t.Context(), prefix+":policies:{shop}",
		"binary", "\x00\xff", "empty", "", "huge", strings.Repeat("x", policy.MaxDefinitionSize+1), "object", "{}", "moved", foreign, "cut", own[:len(own)/2],
		"changed", strings.Replace(string(own), "100", "900", 1))

	snapshot := load(t, s, "shop")
	if diff := cmp.Diff(map[string]int64{"orders": 1}, generations(snapshot)); diff != "" {
		t.Error(diff)
	}
	var rejected []string
	for _, r := range snapshot.Rejected {
		rejected = append(rejected, r.Name)
	}
	if diff := cmp.Diff([]string{"binary", "changed", "cut", "empty", "huge", "moved", "object"}, rejected); diff != "" {
		t.Error(diff)
	}
	// The next publish makes the namespace whole again.
	if p := publish(t, s, "shop", definition("shop", "orders", 1)); !p.Changed {
		t.Error("a publish over garbage changed nothing")
	}
	if snapshot := load(t, s, "shop"); len(snapshot.Rejected) != 0 {
		t.Errorf("still rejected: %v", snapshot.Rejected)
	}
}

func TestPublishRepairsKeysOfAnyContent(t *testing.T) {
	for name, spoil := range map[string]func(c redis.UniversalClient, policies, revision string) error{
		"revision is text": func(c redis.UniversalClient, _, r string) error { return c.Set(t.Context(), r, "soon", 0).Err() },
		"revision is list": func(c redis.UniversalClient, _, r string) error {
			c.Del(t.Context(), r)
			return c.LPush(t.Context(), r, 1).Err()
		},
		"policies is text":  func(c redis.UniversalClient, p, _ string) error { return c.Set(t.Context(), p, "x", 0).Err() },
		"policies are gone": func(c redis.UniversalClient, p, _ string) error { return c.Del(t.Context(), p).Err() },
		"revision is gone":  func(c redis.UniversalClient, _, r string) error { return c.Del(t.Context(), r).Err() },
	} {
		t.Run(name, func(t *testing.T) {
			s, client, prefix := sharedStore(t)
			publish(t, s, "shop", definition("shop", "orders", 3))
			if err := spoil(client, prefix+":policies:{shop}", prefix+":revision:{shop}"); err != nil {
				t.Fatal(err)
			}
			p := publish(t, s, "shop", definition("shop", "orders", 3))
			snapshot := load(t, s, "shop")
			if !p.Changed || snapshot.Revision != p.Revision {
				t.Errorf("published %+v and loaded %+v", p, snapshot)
			}
			if diff := cmp.Diff(map[string]int64{"orders": 3}, generations(snapshot)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestEverythingWorksOnACluster(t *testing.T) {
	cluster := testredis.StartCluster(t, 3)
	s, _ := connect(t, strings.Replace(cluster.URL(), "redis://", "redis+cluster://", 1), store.DefaultPrefix)
	for i := range 20 { // spread over the nodes
		ns := fmt.Sprintf("ns%d", i)
		publish(t, s, ns, definition(ns, "orders", 1))
		if _, err := s.Pulse(ns).Beat(t.Context(), store.Heartbeat{Pod: "a"}); err != nil {
			t.Fatal(err)
		}
		if enforcers, err := s.Enforcers(t.Context(), ns); err != nil || len(enforcers) != 1 {
			t.Fatalf("enforcers of %s: %v, %v", ns, enforcers, err)
		}
		if g := generations(load(t, s, ns)); g["orders"] != 1 {
			t.Errorf("loaded %v", g)
		}
	}
	if namespaces, err := s.Namespaces(t.Context()); err != nil || len(namespaces) != 20 {
		t.Errorf("namespaces: %v, %v", namespaces, err)
	}
}

func TestScriptsAreLoadedOnEveryNodeAndAgainAfterAFlush(t *testing.T) {
	cluster := testredis.StartCluster(t, 3)
	s, client := connect(t, strings.Replace(cluster.URL(), "redis://", "redis+cluster://", 1), store.DefaultPrefix)
	hash := store.Scripts()["load.lua"].Hash()
	onAll := func() {
		t.Helper()
		if err := s.LoadScripts(t.Context(), store.Scripts()); err != nil {
			t.Fatal(err)
		}
		err := client.(*redis.ClusterClient).ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
			if known := node.ScriptExists(ctx, hash).Val(); len(known) != 1 || !known[0] {
				return fmt.Errorf("%v does not know the script", node)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	onAll()
	client.ScriptFlush(t.Context())
	onAll()
}
