package chaos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/testredis"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// patience is a storeTimeout that only a fault exceeds.
const patience = 500 * time.Millisecond

func TestAServerIsKilledAndComesBackEmpty(t *testing.T) {
	noLeaks(t)
	server := testredis.Start(t)
	s := newScene(t, open(t, server.URL(), patience))
	s.load()
	var losses []span
	for range 2 {
		lost := span{from: s.now()}
		server.Kill()
		s.degrades()
		s.decisions(100 * callers)
		server.Restart(t)
		lost.to = s.now()
		losses = append(losses, lost)
		s.recovers(lost.to)
		s.decisions(50 * callers)
	}
	s.check(losses...)
	// R15: no more connections than the pools have, and not one for each request.
	stats := server.Client(t).InfoMap(t.Context(), "stats")
	n, err := strconv.Atoi(stats.Item("Stats", "total_connections_received"))
	if err != nil || n > 60 {
		t.Errorf("%d connections since the restart, %v", n, err)
	}
}

func TestAServerIsStoppedAndGoesOn(t *testing.T) {
	noLeaks(t)
	server := testredis.Start(t)
	s := newScene(t, open(t, server.URL(), 100*time.Millisecond))
	s.load()
	for range 2 {
		server.Pause()
		s.degrades()
		s.decisions(10 * callers)
		server.Resume()
		s.recovers(s.now())
		s.decisions(50 * callers)
	}
	s.check()
}

func TestRepliesAreCutInTheMiddle(t *testing.T) {
	noLeaks(t)
	server := testredis.Start(t)
	proxy := testredis.StartProxy(t, server)
	s := newScene(t, open(t, "redis://"+proxy.Addr, patience))
	s.load()
	seen := s.size()
	for range 20 {
		proxy.CutReply()
		s.until("a reply that is cut", func([]observation) bool { return proxy.Pending() == 0 })
		s.decisions(callers)
	}
	s.lasts(2 * sketch.window)
	s.degraded(seen)
	s.recovers(s.now())
	proxy.CutAll()
	s.recovers(s.now())
	s.decisions(20 * callers)
	s.check()
}

// R11: the server has counted the request, and nobody heard of it.
func TestAReplyIsLostOnce(t *testing.T) {
	noLeaks(t)
	server := testredis.Start(t)
	proxy := testredis.StartProxy(t, server)
	s := newScene(t, open(t, "redis://"+proxy.Addr, 100*time.Millisecond))
	s.insist("a") // connects
	s.insist("a")
	proxy.DropReply()
	d := s.ask("a")
	if proxy.Pending() != 0 {
		t.Fatal("no reply was dropped")
	}
	if !d.Degraded || !d.Allowed {
		t.Errorf("the store did not answer, and the decision is %+v", d)
	}
	const more = 10
	for range more {
		s.insist("a")
	}
	least, most := sketch.counted(s.trace, "a")
	if used := s.used("a"); used < least || used > most || least < 2+more {
		t.Errorf("%d requests are counted, want %d to %d", used, least, most)
	}
}

// R7: scripts that are gone are loaded again, and nobody notices.
func TestScriptsAreFlushedAllTheTime(t *testing.T) {
	noLeaks(t)
	server := testredis.Start(t)
	s := newScene(t, open(t, server.URL(), 5*time.Second))
	s.load()
	admin := server.Client(t)
	flushes := 0
	for end := s.now() + 2*sketch.window; s.now() < end; flushes++ {
		if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	s.check()
	if flushes < 50 {
		t.Errorf("only %d flushes", flushes)
	}
	for _, o := range s.trace {
		if o.degraded {
			t.Fatalf("a request failed: %+v", o)
		}
	}
}

// A script whose first write takes no memory, such as that of a log which first
// forgets, may write although the memory is full. Other requests are degraded.
func TestTheMemoryIsFull(t *testing.T) {
	for name, tc := range map[string]struct {
		spec    string
		counted bool
	}{
		"with a log first": {spec(patience), true},
		"with counts only": {total, false},
	} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			server := testredis.Start(t, "--maxmemory-policy", "noeviction")
			s := newScene(t, start(t, tallyman.Options{Store: server.URL(), PolicyFile: policyFile(t, tc.spec)}))
			if !tc.counted {
				s.promise.requests = inTotal
			}
			s.load()
			admin := server.Client(t)
			if err := admin.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
				t.Fatal(err)
			}
			if err := admin.Set(t.Context(), "other", "", 0).Err(); !redis.IsOOMError(err) {
				t.Fatalf("the memory is not full: %v", err)
			}
			if !tc.counted {
				s.degrades()
			}
			s.lasts(2 * sketch.window)
			if err := admin.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
				t.Fatal(err)
			}
			s.recovers(s.now())
			s.decisions(50 * callers)
			s.check()
		})
	}
}

// R19: policies on two databases of one server never see each other's counts.
func TestTwoDatabasesAreTwoCounts(t *testing.T) {
	noLeaks(t)
	server := testredis.Start(t)
	first := newScene(t, open(t, server.URL()[:len(server.URL())-1]+"1", patience))
	second := newScene(t, open(t, server.URL()[:len(server.URL())-1]+"2", patience))
	for range 3 {
		first.ask("a")
	}
	second.ask("a")
	if a, b := first.used("a"), second.used("a"); a != 3 || b != 1 {
		t.Errorf("the databases have %d and %d", a, b)
	}
}

// What a fault tells of itself never shows a password.
func TestFaultsShowNoPassword(t *testing.T) {
	noLeaks(t)
	server := testredis.Start(t, "--requirepass", "hunter2")
	var mu sync.Mutex
	var told []error
	l := start(t, tallyman.Options{
		Store: server.URL(), PolicyFile: policyFile(t, spec(patience)),
		Observer: tallyman.Observer{StoreCalled: func(_ context.Context, _ time.Duration, err error) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, err)
		}},
	})
	server.Kill()
	l.Admit(t.Context(), request("a"))
	mu.Lock()
	defer mu.Unlock()
	if err := errors.Join(told...); err == nil || strings.Contains(fmt.Sprintf("%+v", err), "hunter2") {
		t.Errorf("the observer was told %v", err)
	}
}
