package chaos

import (
	"slices"
	"strings"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/testredis"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// Two limiters that count on two servers are what the whole program is against.
// The checker must tell them from two that share one count.
func TestTheCheckerFindsTwoCountsUnderLoad(t *testing.T) {
	noLeaks(t)
	one, other := testredis.Start(t), testredis.Start(t)
	if found := together(t, one, one); len(found) > 0 {
		t.Errorf("one count, and the checker found %q", found[0])
	}
	if found := together(t, one, other); len(found) == 0 || !strings.Contains(found[0], "admitted within") {
		t.Errorf("two counts, and the checker found %q", found)
	}
}

// together runs two limiters at once, and checks what both of them decided.
func together(t *testing.T, servers ...*testredis.Server) []string {
	t.Helper()
	var scenes []*scene
	for _, server := range servers {
		s := newScene(t, open(t, server.URL(), patience))
		if len(scenes) > 0 {
			s.began = scenes[0].began
		}
		scenes = append(scenes, s)
		s.load()
	}
	scenes[0].lasts(2 * sketch.window)
	var trace []observation
	for _, s := range scenes {
		s.finish()
		trace = slices.Concat(trace, s.trace)
	}
	return sketch.broken(trace)
}

func TestTheCheckerFindsRefusalsWhileUnitsRemain(t *testing.T) {
	noLeaks(t)
	server := testredis.Start(t)
	stricter := strings.Replace(spec(patience), `"requests": 30`, `"requests": 29`, 1)
	s := newScene(t, start(t, tallyman.Options{Store: server.URL(), PolicyFile: policyFile(t, stricter)}))
	s.load()
	s.lasts(2 * sketch.window)
	s.finish()
	if found := sketch.broken(s.trace); len(found) == 0 || !strings.Contains(found[0], "at most 29 of 30") {
		t.Errorf("found %q", found)
	}
}
