package limiter

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

func TestMemoryDropsCountersThatAreFullAgain(t *testing.T) {
	for _, a := range algorithms {
		t.Run(string(a), func(t *testing.T) {
			c := &clock{epoch}
			m := NewMemory(c.time)
			l := limitOf(a, 10, time.Second)
			for i := range 10_000 {
				c.micros += 10_000 // 100 keys a window
				take(t, m, Hit{Rule: rule(l), Key: fmt.Sprint(i), Cost: 1})
			}
			// A SlidingWindow's counter lasts for two windows.
			if n := len(m.counters); n > 250 || n != len(m.expiries) {
				t.Fatalf("%d counters and %d expiries are stored", n, len(m.expiries))
			}
		})
	}
}

func TestMemoryKeepsACounterInUse(t *testing.T) {
	c := &clock{epoch}
	m := NewMemory(c.time)
	log := Hit{Rule: rule(limitOf(policy.SlidingLog, 1000, time.Second)), Key: "used", Cost: 1}
	for i := range 5000 {
		c.micros += 1000
		take(t, m, log, Hit{Rule: log.Rule, Key: fmt.Sprint(i), Cost: 1})
		if want := max(0, 999-int64(i)); peek(t, m, log)[0].Remaining != want {
			t.Fatalf("after %d takes: %+v", i+1, peek(t, m, log)[0])
		}
	}
	if n := len(m.counters["used"].log); n != 1000 {
		t.Fatalf("the log has %d entries", n)
	}
}

func TestMemorySweepsWithEachHit(t *testing.T) {
	c := &clock{epoch}
	m := NewMemory(c.time)
	hit := Hit{Rule: rule(limitOf(policy.SlidingWindow, 2, time.Hour)), Key: "k", Cost: 1}
	take(t, m, hit)
	c.set(3 * time.Hour)
	take(t, m)
	requireCounters(t, m, 1) // a call without hits sweeps nothing
	take(t, m, Hit{Rule: hit.Rule, Key: "other", Cost: 1})
	requireCounters(t, m, 1)
}

func requireCounters(t *testing.T, m *Memory, want int) {
	t.Helper()
	if len(m.counters) != want {
		t.Fatalf("%d counters are stored, want %d", len(m.counters), want)
	}
}

func TestMemoryAdmitsConcurrentRequestsExactly(t *testing.T) {
	m := NewMemory(time.Now)
	var hits []Hit
	for _, a := range algorithms {
		hits = append(hits, Hit{Rule: rule(limitOf(a, 100, 720*time.Hour)), Key: string(a), Cost: 1})
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	admitted := 0
	for range 8 {
		wg.Go(func() {
			for range 50 {
				results, err := ask(t.Context(), m, Take, hits)
				if err != nil {
					t.Error(err)
				}
				if allAllowed(results) {
					mu.Lock()
					admitted++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	diff(t, "admitted", admitted, 100)
}
