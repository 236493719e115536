package chaos

import (
	"sync/atomic"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/store"
	"github.com/tallyman-dev/tallyman/internal/testredis"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// R19: a policy that changes has no connections of its own.
func TestUpdatesOpenNoConnections(t *testing.T) {
	noLeaks(t)
	server := testredis.Start(t)
	proxy := testredis.StartProxy(t, server)
	manager := publisher(t, server)
	manager.publish(1)
	var loaded atomic.Int64
	l := start(t, tallyman.Options{
		Store: "redis://" + proxy.Addr, Namespace: "shop",
		Observer: tallyman.Observer{DefinitionsLoaded: func(tallyman.State) { loaded.Add(1) }},
	})
	s := newScene(t, l)
	<-l.Ready()
	s.load()
	before := proxy.Accepted()

	const updates = 200
	for i := range updates {
		seen := loaded.Load()
		manager.publish(int64(2 + i))
		s.until("an update", func([]observation) bool { return loaded.Load() > seen })
	}
	s.lasts(2 * sketch.window)
	s.check()
	// The pool may still have grown to what eight callers need.
	if n := proxy.Accepted() - before; n > callers {
		t.Errorf("%d updates opened %d connections", updates, n)
	}
	if n := proxy.Open(); n > before+callers {
		t.Errorf("%d connections are open, %d before the updates", n, before)
	}
}

// manager publishes definitions, as the operator does.
type manager struct {
	t     *testing.T
	store *store.Store
}

func publisher(t *testing.T, server *testredis.Server) manager {
	t.Helper()
	client, err := store.Connect(store.ConnectOptions{URL: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return manager{t, store.New(client, store.DefaultPrefix)}
}

// publish publishes the policy of the file, as of a generation.
func (m manager) publish(generation int64) {
	m.t.Helper()
	decoded, err := policy.DecodeSpec([]byte(spec(patience)))
	if err != nil {
		m.t.Fatal(err)
	}
	_, err = m.store.Publish(m.t.Context(), "shop", []policy.Definition{{
		Namespace: "shop", Name: "chaos", Generation: generation,
		Selectors: []policy.Selector{{}}, Spec: decoded,
	}})
	if err != nil {
		m.t.Fatalf("publish generation %d: %v", generation, err)
	}
}
