package limiter

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/google/go-cmp/cmp"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// By its own clock Redis decides as the reference does at the time that the
// reply tells, keys that expire meanwhile included; and that time is now.
func TestRedisByItsOwnTimeAgreesWithMemory(t *testing.T) {
	client := testredis.Shared(t).Client(t)
	rapid.Check(t, func(rt *rapid.T) {
		s := NewRedis(client, RedisOptions{Hooks: Hooks{Corrupt: func(key string) { rt.Errorf("%s is called corrupt", key) }}})
		c := &clock{}
		m := NewMemory(c.time)
		prefix := testredis.Prefix(t)
		var rules []*Rule
		for _, a := range algorithms {
			window := time.Duration(rapid.IntRange(1, 20).Draw(rt, "window")) * time.Millisecond
			l := limitOf(a, rapid.Int64Range(1, 8).Draw(rt, "requests"), window)
			l.Burst = rapid.Int64Range(1, 8).Draw(rt, "burst")
			rules = append(rules, rule(l))
		}
		for range 30 {
			call := Call{Timeout: time.Minute}
			for _, r := range rules {
				call.Hits = append(call.Hits, Hit{Rule: r, Key: CounterKey(KeyBase(prefix, "n", "p", "l", r), "1:a"),
					Cost: rapid.Int64Range(0, 3).Draw(rt, "cost"), Shadow: rapid.Bool().Draw(rt, "shadow")})
			}
			before := time.Now().UnixMicro()
			f := flights.Get().(*flight)
			if err := f.prepare(&call); err != nil {
				rt.Fatal(err)
			}
			f.setTimeout(call.timeout())
			if _, err := s.do(rt.Context(), f); err != nil {
				rt.Fatal(err)
			}
			f.conclude(&call)
			c.micros = f.hits[0].state.now
			if c.micros < before || c.micros > time.Now().UnixMicro() {
				rt.Fatalf("the script's time is %d, ours %d", c.micros, before)
			}
			reference := call
			reference.Results = nil
			if err := m.Do(rt.Context(), &reference); err != nil {
				rt.Fatal(err)
			}
			if d := cmp.Diff(reference.Results, call.Results); d != "" {
				rt.Fatalf("take of %+v (-memory +redis):\n%s", call.Hits, d)
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
		take(t, NewRedis(client, RedisOptions{}), Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1})
	}
	stats, err := client.Info(t.Context(), "commandstats").Result()
	if err != nil || strings.Contains(stats, "cmdstat_eval:") {
		t.Fatalf("a loaded script was sent again: %v\n%s", err, stats)
	}
}

// Whatever a server answers, it is read without a panic; and what does not have
// the size that the calls need is an error.
func FuzzReply(f *testing.F) {
	for _, size := range []int{0, 6, 7, 8, 21, 22, 23, 42, 43, 44, 1000} {
		f.Add(strings.Repeat("\x01", size))
		f.Add(strings.Repeat("\x00", size))
	}
	f.Fuzz(func(t *testing.T, reply string) {
		l := limitOf(algorithms[0], 1, time.Second)
		call := &Call{Hits: []Hit{{Rule: rule(l), Key: "k", Cost: 1}}}
		f := &flight{}
		if err := f.prepare(call); err != nil {
			t.Fatal(err)
		}
		e := &evaluation{last: map[string]int{}, rules: map[*Rule]uint16{}}
		e.build([]*flight{f}, 0, "")
		_, err := e.read(reply, nil)
		short := len(reply) > 7 && reply[7] == 1
		if (err == nil) != (short && len(reply) == 7+1+14 || !short && len(reply) == 7+1+7+28) {
			t.Fatalf("%d bytes: %v", len(reply), err)
		}
		f.conclude(call)
	})
}

// A numerator beyond its denominator, which the script never tells, made a search for
// what fits go on for minutes.
func TestAReplyThatCannotBeIsRefused(t *testing.T) {
	call := &Call{Op: Charge, Hits: []Hit{{Rule: rule(limitOf(policy.TokenBucket, 5, time.Second)), Key: "k", Cost: 1}}}
	f := &flight{}
	if err := f.prepare(call); err != nil {
		t.Fatal(err)
	}
	e := &evaluation{last: map[string]int{}, rules: map[*Rule]uint16{}}
	e.build([]*flight{f}, 0, "")
	zeros := strings.Repeat("\x00", integerSize+callSize+hitSize-1)
	if _, err := e.read(zeros+"\x00", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := e.read(zeros+"\xff", nil); !errors.Is(err, errReply) {
		t.Fatalf("%v", err)
	}
}

func TestUnreachableRedisIsAnErrorThatSaysSo(t *testing.T) {
	server := testredis.Start(t)
	s, _ := live(t, server)
	server.Kill()
	l := limitOf(algorithms[0], 1, time.Second)
	_, err := ask(t.Context(), s, Take, []Hit{{Rule: rule(l), Key: "k", Cost: 1}})
	if err == nil || errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "ask Redis for 1 counters") {
		t.Fatalf("%v", err)
	}
	server.Restart(t)
	take(t, s, Hit{Rule: rule(l), Key: "k", Cost: 1})
}

// Each call is told of once, with those that shared its trip.
func TestTripsTellOfTheCallsThatShareThem(t *testing.T) {
	const calls = 500
	var trips, shared atomic.Int64
	s := NewRedis(testredis.Shared(t).Client(t), RedisOptions{Hooks: Hooks{Sent: func(n int) {
		trips.Add(1)
		shared.Add(int64(n))
	}}})
	l := limitOf(algorithms[0], calls, time.Hour)
	hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 1}
	var callers sync.WaitGroup
	for range calls {
		callers.Go(func() { take(t, s, hit) })
	}
	callers.Wait()
	if shared.Load() != calls || trips.Load() == 0 || trips.Load() > calls {
		t.Errorf("%d calls in %d trips, of %d calls", shared.Load(), trips.Load(), calls)
	}
}
