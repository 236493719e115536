package limiter

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/google/go-cmp/cmp"

	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// By its own clock Redis decides as the reference does at the time that the
// reply tells, keys that expire meanwhile included; and that time is now.
func TestRedisByItsOwnTimeAgreesWithMemory(t *testing.T) {
	client := testredis.Shared(t).Client(t)
	rapid.Check(t, func(rt *rapid.T) {
		s := NewRedis(client, Hooks{Corrupt: func(key string) { rt.Errorf("%s is called corrupt", key) }})
		c := &clock{}
		m := NewMemory(c.time)
		prefix := testredis.Prefix(t)
		var limits []Limit
		for i, a := range algorithms {
			window := time.Duration(rapid.IntRange(1, 20).Draw(rt, "window")) * time.Millisecond
			limits = append(limits, limitOf(a, rapid.Int64Range(1, 8).Draw(rt, "requests"), window))
			limits[i].Burst = rapid.Int64Range(1, 8).Draw(rt, "burst")
		}
		for range 30 {
			hits := make([]Hit, len(limits))
			for i, l := range limits {
				hits[i] = Hit{Limit: l, Key: CounterKey(KeyBase(prefix, "n", "p", "l", l), "1:a"),
					Cost: rapid.Int64Range(0, 3).Draw(rt, "cost"), Shadow: rapid.Bool().Draw(rt, "shadow")}
			}
			before := time.Now().UnixMicro()
			decisions, err := prepare(hits)
			if err != nil {
				rt.Fatal(err)
			}
			if err := s.run(rt.Context(), hits, decisions, verbTake); err != nil {
				rt.Fatal(err)
			}
			c.micros = decisions[0].state.now
			if c.micros < before || c.micros > time.Now().UnixMicro() {
				rt.Fatalf("the script's time is %d, ours %d", c.micros, before)
			}
			want, err := m.Take(rt.Context(), hits)
			if err != nil {
				rt.Fatal(err)
			}
			if d := cmp.Diff(want, conclude(hits, decisions, true)); d != "" {
				rt.Fatalf("take of %+v (-memory +redis):\n%s", hits, d)
			}
		}
	})
}

func TestScriptsCanBeLoadedAheadOfTheirUse(t *testing.T) {
	client := testredis.Start(t).Client(t)
	for _, script := range Scripts() {
		if err := script.Load(t.Context(), client).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range algorithms {
		l := limitOf(a, 1, time.Second)
		take(t, NewRedis(client, Hooks{}), Hit{Limit: l, Key: keyOf(t, l), Cost: 1})
	}
	stats, err := client.Info(t.Context(), "commandstats").Result()
	if err != nil || strings.Contains(stats, "cmdstat_eval:") {
		t.Fatalf("a loaded script was sent again: %v\n%s", err, stats)
	}
}

func TestUnexpectedReplyIsAnError(t *testing.T) {
	s := &Redis{}
	hit := Hit{Limit: limitOf(algorithms[0], 1, time.Second), Cost: 1}
	for _, reply := range [][]int64{nil, {1}, {1, 1, 0, 0, 0}, {1, 1, 0, 0, 0, 0, 0}} {
		if err := s.read(reply, []Hit{hit}, make([]decision, 1)); err == nil {
			t.Errorf("%v is taken for an answer", reply)
		}
	}
}

func TestUnreachableRedisIsAnErrorThatSaysSo(t *testing.T) {
	server := testredis.Start(t)
	s, _ := live(t, server)
	server.Kill()
	l := limitOf(algorithms[0], 1, time.Second)
	_, err := s.Take(t.Context(), []Hit{{Limit: l, Key: "k", Cost: 1}})
	if err == nil || errors.Is(err, ErrInvalidHit) || !strings.Contains(err.Error(), "take 1 counters in Redis") {
		t.Fatalf("%v", err)
	}
	server.Restart(t)
	take(t, s, Hit{Limit: l, Key: "k", Cost: 1})
}
