package limiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// attempt is a take of one history: what it asked for, when, and what it got.
type attempt struct {
	cost             int64
	called, returned time.Duration
	granted          bool
	// at is the time by which the store decided, in µs since 1970.
	at int64
}

// contradiction tells why a history is not that of a limit, of whose units none
// come back, that decides each attempt at one moment between its call and its
// return. It looks at the times of the callers only.
//
// It is exact: if all that was granted is within the limit, and each refusal is
// right when all have been taken that were asked for before it returned, then to
// grant each attempt when it is called, and to refuse it when it returns, is an
// order that explains the history.
func contradiction(limit int64, history []attempt) error {
	grants := slices.DeleteFunc(slices.Clone(history), func(a attempt) bool { return !a.granted })
	slices.SortFunc(grants, func(a, b attempt) int { return cmp.Compare(a.called, b.called) })
	sums := []int64{0} // of the first grants
	for i, g := range grants {
		sums = append(sums, sums[i]+g.cost)
	}
	if total := sums[len(grants)]; total > limit {
		return fmt.Errorf("%d units were granted by a limit of %d", total, limit)
	}
	for _, a := range history {
		called, _ := slices.BinarySearchFunc(grants, a.returned, func(g attempt, t time.Duration) int { return cmp.Compare(g.called, t) })
		if left := limit - sums[called]; !a.granted && left >= a.cost {
			return fmt.Errorf("%+v was refused while %d units remained", a, left)
		}
	}
	return nil
}

func TestContradictionsAreFound(t *testing.T) {
	a := func(cost int64, called, returned time.Duration, granted bool) attempt {
		return attempt{cost: cost, called: called, returned: returned, granted: granted}
	}
	for name, test := range map[string]struct {
		history []attempt
		want    string
	}{
		"nothing":                          {nil, ""},
		"the limit, and no more":           {[]attempt{a(6, 0, 1, true), a(4, 2, 3, true), a(1, 4, 5, false)}, ""},
		"above the limit":                  {[]attempt{a(6, 0, 5, true), a(5, 0, 5, true)}, "11 units were granted by a limit of 10"},
		"refused for others at once":       {[]attempt{a(6, 0, 5, true), a(6, 0, 5, false)}, ""},
		"refused before others":            {[]attempt{a(6, 6, 7, true), a(6, 0, 5, false)}, "while 10 units remained"},
		"refused while some remained":      {[]attempt{a(6, 0, 1, true), a(4, 2, 3, false)}, "while 4 units remained"},
		"refused, as not so many remained": {[]attempt{a(6, 0, 1, true), a(5, 2, 3, false), a(4, 4, 5, true)}, ""},
		"refused, then granted":            {[]attempt{a(6, 0, 9, true), a(4, 1, 2, false), a(4, 3, 4, true)}, "while 4 units remained"},
		"refused for what comes later":     {[]attempt{a(6, 0, 9, true), a(5, 1, 2, false), a(5, 3, 4, true)}, "11 units were granted"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := contradiction(10, test.history); err != nil {
				got = err.Error()
			}
			if (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
				t.Fatalf("%q, want %q", got, test.want)
			}
		})
	}
}

// What happened one after the other is told from everything else: any answer that
// is the wrong one is a contradiction.
func TestAnyWrongAnswerIsAContradiction(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 20
		var history []attempt
		left := int64(limit)
		for i := range rapid.IntRange(1, 20).Draw(t, "attempts") {
			cost := rapid.Int64Range(1, 8).Draw(t, "cost")
			granted := cost <= left
			if granted {
				left -= cost
			}
			history = append(history, attempt{cost: cost, called: time.Duration(2 * i), returned: time.Duration(2*i + 1), granted: granted})
		}
		if err := contradiction(limit, history); err != nil {
			t.Fatal(err)
		}
		wrong := &history[rapid.IntRange(0, len(history)-1).Draw(t, "wrong")]
		wrong.granted = !wrong.granted
		if contradiction(limit, history) == nil {
			t.Fatalf("%+v was not found", *wrong)
		}
	})
}

// unfounded finds an answer that the algorithm of a limit does not give, by the
// times at which the store decided: the reference has to admit all that was
// granted, and to refuse what was refused when all that was granted before, and at
// the same moment, has been taken.
func unfounded(r *Rule, history []attempt) error {
	slices.SortStableFunc(history, func(a, b attempt) int {
		if a.at == b.at && a.granted != b.granted {
			if a.granted {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.at, b.at)
	})
	c := &clock{}
	m := NewMemory(c.time)
	for _, a := range history {
		c.micros = a.at
		call := Call{Hits: []Hit{{Rule: r, Key: "k", Cost: a.cost}}}
		if !a.granted {
			call.Op = Peek
		}
		if err := m.Do(context.Background(), &call); err != nil {
			return err
		}
		if granted := call.Granted == 1; granted != a.granted {
			return fmt.Errorf("%+v is what %+v does not say: %+v", a, r.limit, call.Results[0])
		}
	}
	return untimely(history)
}

// untimely finds an attempt that was decided before another one that had come
// back before it was made.
func untimely(history []attempt) error {
	byCall, byReturn := slices.Clone(history), slices.Clone(history)
	slices.SortFunc(byCall, func(a, b attempt) int { return cmp.Compare(a.called, b.called) })
	slices.SortFunc(byReturn, func(a, b attempt) int { return cmp.Compare(a.returned, b.returned) })
	var latest attempt
	for _, a := range byCall {
		for len(byReturn) > 0 && byReturn[0].returned <= a.called {
			if byReturn[0].at > latest.at {
				latest = byReturn[0]
			}
			byReturn = byReturn[1:]
		}
		if a.at < latest.at {
			return fmt.Errorf("%+v was decided before %+v", a, latest)
		}
	}
	return nil
}

func TestUnfoundedAnswersAreFound(t *testing.T) {
	r := rule(limitOf(policy.SlidingLog, 10, time.Second))
	a := func(at time.Duration, cost int64, granted bool) attempt {
		return attempt{at: epoch + at.Microseconds(), cost: cost, granted: granted, called: at, returned: at + 1}
	}
	for name, test := range map[string]struct {
		history []attempt
		found   bool
	}{
		"the limit in each second": {[]attempt{a(0, 10, true), a(1, 1, false), a(time.Second, 10, true)}, false},
		"above the limit":          {[]attempt{a(0, 10, true), a(time.Second-time.Microsecond, 1, true)}, true},
		"refused without need":     {[]attempt{a(0, 10, true), a(time.Second, 1, false)}, true},
		"decided in the past":      {[]attempt{a(2*time.Second, 1, true), {at: epoch, cost: 1, granted: true, called: 3 * time.Second, returned: 4 * time.Second}}, true},
	} {
		if err := unfounded(r, test.history); (err != nil) != test.found {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// storesOf are a few stores with clients of their own, as many processes have.
func storesOf(t *testing.T, connect func() redis.UniversalClient) []*Redis {
	stores := make([]*Redis, 3)
	for i := range stores {
		stores[i] = NewRedis(connect(), RedisOptions{})
	}
	return stores
}

func clients(t *testing.T, server *testredis.Server) func() redis.UniversalClient {
	return func() redis.UniversalClient {
		client := redis.NewClient(&redis.Options{Addr: server.Addr, ContextTimeoutEnabled: true, MaxRetries: -1})
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
}

// hammer has many callers take hits over all stores at once, each so many times
// with costs up to the highest, and returns how each attempt fared.
func hammer(t *testing.T, stores []*Redis, hits []Hit, callers, times int, highest int64) []attempt {
	t.Helper()
	history := make([]attempt, callers*times)
	start := time.Now()
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			c := Call{Hits: slices.Clone(hits), Timeout: time.Minute, wantStates: true}
			for j := range times {
				a := &history[i*times+j]
				a.cost = 1 + rand.Int64N(highest)
				for k := range c.Hits {
					c.Hits[k].Cost = a.cost
				}
				a.called = time.Since(start)
				if err := stores[i%len(stores)].Do(t.Context(), &c); err != nil {
					t.Error(err)
					return
				}
				a.returned, a.granted, a.at = time.Since(start), c.Granted == 1, c.states[0].now
			}
		})
	}
	wg.Wait()
	return history
}

func unitsGranted(history []attempt) (units int64) {
	for _, a := range history {
		if a.granted {
			units += a.cost
		}
	}
	return units
}

// Exact is linearizable: whatever the interleaving, no more than the limit is
// granted, and none is refused while there are units for it.
func testLinearizable(t *testing.T, connect func() redis.UniversalClient) {
	for _, a := range algorithms {
		for _, highest := range []int64{1, 5} {
			t.Run(fmt.Sprintf("%s, costs up to %d", a, highest), func(t *testing.T) {
				const limit = 500
				l := limitOf(a, limit, 10*365*24*time.Hour) // no unit comes back meanwhile
				hit := Hit{Rule: rule(l), Key: keyOf(t, l)}
				history := hammer(t, storesOf(t, connect), []Hit{hit}, 48, 15, highest)
				if err := contradiction(limit, history); err != nil {
					t.Fatal(err)
				}
				if highest == 1 {
					diff(t, "granted", unitsGranted(history), limit)
				}
			})
		}
	}
}

// The same where units come back all the time, by the algorithm's own contract.
func testWindows(t *testing.T, connect func() redis.UniversalClient) {
	for _, a := range algorithms {
		t.Run(string(a), func(t *testing.T) {
			l := limitOf(a, 40, 20*time.Millisecond)
			hit := Hit{Rule: rule(l), Key: keyOf(t, l)}
			history := hammer(t, storesOf(t, connect), []Hit{hit}, 32, 60, 5)
			if err := unfounded(hit.Rule, history); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestExactIsLinearizable(t *testing.T) {
	connect := clients(t, testredis.Shared(t))
	testLinearizable(t, connect)
	t.Run("as units come back", func(t *testing.T) { testWindows(t, connect) })
}

// testExact is TestExactIsLinearizable and what is like it on a cluster.
func testExact(t *testing.T, cluster *testredis.Cluster) {
	connect := func() redis.UniversalClient { return cluster.Client(t) }
	t.Run("one tag", func(t *testing.T) { testLinearizable(t, connect) })
	t.Run("different tags", func(t *testing.T) { testTagsAtOnce(t, connect) })
	t.Run("1,024 callers", func(t *testing.T) { testManyCallers(t, connect) })
}

// Hits of different tags are taken in turn, and given back when a later one is
// refused. So one can be refused for units that come back in a moment; but no
// limit grants more than it has, and what was not granted is there afterwards.
func testTagsAtOnce(t *testing.T, connect func() redis.UniversalClient) {
	stores := storesOf(t, connect)
	hits := tagged(t, 300)
	least := rule(limitOf(policy.TokenBucket, 200, 10*365*24*time.Hour))
	hits[3].Rule = least
	history := hammer(t, stores, hits, 24, 25, 3)
	units := unitsGranted(history)
	if units > 200 {
		t.Fatalf("%d units were granted, and the least limit is 200", units)
	}
	left := 300 - units
	diff(t, "remaining", remainingOf(peek(t, stores[0], hits...)), []int64{left, left, left, left - 100})
	// Nobody is in the way of those who come one after the other.
	for i := range hits {
		hits[i].Cost = 1
	}
	for range 200 - units {
		if !allAllowed(take(t, stores[0], hits...)) {
			t.Fatal("refused, and nobody was in the way")
		}
	}
	if allAllowed(take(t, stores[0], hits...)) {
		t.Fatal("granted above the limit")
	}
}

func testManyCallers(t *testing.T, connect func() redis.UniversalClient) {
	const callers, times, keys = 1024, 2, 64
	for name, tags := range map[string]int{"one key": 1, "many keys": keys} {
		t.Run(name, func(t *testing.T) {
			stores := storesOf(t, connect)
			limit := int64(callers * times / tags * 3 / 4)
			l := limitOf(policy.FixedWindow, limit, 10*365*24*time.Hour)
			base := KeyBase(testredis.Prefix(t), "n", "p", "l", rule(l))
			var admitted atomic.Int64
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					for range times {
						c := Call{Hits: []Hit{{Rule: rule(l), Key: CounterKey(base, fmt.Sprint("1:", i%tags)), Cost: 1}}, Timeout: time.Minute}
						if err := stores[i%len(stores)].Do(t.Context(), &c); err != nil {
							t.Error(err)
						}
						admitted.Add(c.Granted)
					}
				})
			}
			wg.Wait()
			diff(t, "admitted", admitted.Load(), limit*int64(tags))
		})
	}
}

func TestManyCallersMeet(t *testing.T) { testManyCallers(t, clients(t, testredis.Shared(t))) }

// At no time do more requests hold a slot than there are, and all are free again.
func TestSlotsAreNeverHeldTwice(t *testing.T) {
	stores := storesOf(t, clients(t, testredis.Shared(t)))
	const slots = 5
	hit := Hit{Rule: rule(limitOf(policy.Concurrency, slots, time.Hour)), Cost: 1}
	hit.Key = keyOf(t, hit.Rule.Limit())
	var holding, entered atomic.Int64
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			s := stores[i%len(stores)]
			for j := range 20 {
				c := Call{Hits: []Hit{hit}, Token: fmt.Sprint(i, "/", j), Timeout: time.Minute}
				if err := s.Do(t.Context(), &c); err != nil {
					t.Error(err)
				}
				if c.Granted == 0 {
					continue
				}
				entered.Add(1)
				if n := holding.Add(1); n > slots {
					t.Errorf("%d hold one of %d slots", n, slots)
				}
				holding.Add(-1)
				if err := s.Do(t.Context(), &Call{Op: Refund, Hits: []Hit{hit}, Token: c.Token, Timeout: time.Minute}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if entered.Load() < slots {
		t.Errorf("%d were let in", entered.Load())
	}
	diff(t, "remaining", remainingOf(peek(t, stores[0], hit)), []int64{slots})
}

// 256 callers of one hot key share the calls to Redis, 20 a call or more.
func TestCallersOfAHotKeyShareCalls(t *testing.T) {
	const callers, times = 256, 40
	server := testredis.Start(t)
	client := server.Client(t)
	loadScript(t, client)
	store := NewRedis(clients(t, server)(), RedisOptions{})
	l := limitOf(policy.TokenBucket, 1000, 10*365*24*time.Hour)
	hit := Hit{Rule: rule(l), Key: keyOf(t, l)}
	command(t, client, "CONFIG", "RESETSTAT")
	history := hammer(t, []*Redis{store}, []Hit{hit}, callers, times, 1)
	diff(t, "granted", unitsGranted(history), 1000)
	if n := scriptCalls(t, client); n == 0 || n*20 > callers*times {
		t.Errorf("%d script calls for %d decisions", n, callers*times)
	}
}

// scriptCalls is how many script calls a server has had.
func scriptCalls(t *testing.T, client *redis.Client) (n int) {
	t.Helper()
	stats, err := client.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(stats) {
		if rest, found := strings.CutPrefix(line, "cmdstat_evalsha:calls="); found {
			if _, err := fmt.Sscanf(rest, "%d,", &n); err != nil {
				t.Fatal(errors.Join(err, errors.New(line)))
			}
		}
	}
	return n
}
