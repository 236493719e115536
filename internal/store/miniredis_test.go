package store_test

import (
	"testing"

	"github.com/alicebob/miniredis/v2"

	"github.com/tallyman-dev/tallyman/internal/store"
)

// The demo falls back on miniredis where there is no redis-server, and has to
// get along with it. Nothing else is claimed of miniredis.
func TestTheDemosFallbackServes(t *testing.T) {
	server := miniredis.RunT(t)
	s, client := connect(t, "redis://"+server.Addr()+"?protocol=2", store.DefaultPrefix)
	if err := s.LoadScripts(t.Context(), store.Scripts()); err != nil {
		t.Fatal(err)
	}
	publish(t, s, "shop", definition("shop", "orders", 1))
	if g := generations(load(t, s, "shop")); g["orders"] != 1 {
		t.Errorf("loaded %v", g)
	}
	if _, err := s.Pulse("shop").Beat(t.Context(), store.Heartbeat{Pod: "a"}); err != nil {
		t.Error(err)
	}
	if enforcers, err := s.Enforcers(t.Context(), "shop"); err != nil || len(enforcers) != 1 {
		t.Errorf("enforcers: %v, %v", enforcers, err)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
}
