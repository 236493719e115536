package limiter

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/tallyman-dev/tallyman/internal/calendar"
	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// prepared are the flights of calls.
func prepared(t fataler, calls []Call) []*flight {
	t.Helper()
	batch := make([]*flight, len(calls))
	for i := range calls {
		batch[i] = newFlight("", time.Minute)
		if err := batch[i].prepare(&calls[i]); err != nil {
			t.Fatal(err)
		}
	}
	return batch
}

// inOneCall carries out calls as one batch, and returns how many steps it had.
func inOneCall(t fataler, s *Redis, calls []Call) (steps int) {
	t.Helper()
	batch := prepared(t, calls)
	e := evaluations.New().(*evaluation)
	if err := s.evaluate(until{t.Context(), time.Now().Add(time.Minute)}, s.client, e, batch); err != nil {
		t.Fatal(err)
	}
	for i, f := range batch {
		f.conclude(&calls[i])
	}
	return len(e.calls)
}

// A batch gives each call what it would get if all were carried out one after the
// other, whether they are combined or not.
func TestABatchIsItsCallsInTurn(t *testing.T) {
	client := testredis.Shared(t).Client(t)
	var calls, steps int
	rapid.Check(t, func(rt *rapid.T) {
		c := &clock{epoch}
		m := NewSimulatedMemory(c.time)
		s := NewRedis(client, RedisOptions{Now: func() int64 { return c.micros }})
		mix := newMixture(rt, testredis.Prefix(t))
		for range rapid.IntRange(1, 4).Draw(rt, "batches") {
			c.micros += rapid.OneOf(rapid.Just[int64](0), rapid.Int64Range(0, 2*mix.window)).Draw(rt, "pause")
			batch := slices.Concat(rapid.SliceOfN(rapid.Custom(mix.run), 1, 12).Draw(rt, "batch")...)
			want := make([]Call, len(batch))
			for i := range batch {
				want[i] = batch[i]
				if err := m.Do(rt.Context(), &want[i]); err != nil {
					rt.Fatal(err)
				}
			}
			calls += len(batch)
			steps += inOneCall(rt, s, batch)
			for i := range batch {
				if d := cmp.Diff(outcomeOf(&want[i]), outcomeOf(&batch[i])); d != "" {
					rt.Fatalf("call %d of %s (-in turn +in a batch):\n%s", i, describeCalls(batch), d)
				}
			}
		}
	})
	if steps > calls*3/4 {
		t.Errorf("%d calls were carried out in %d steps: too few were alike to show anything", calls, steps)
	}
}

// outcome is what a call says afterwards, in terms that can be compared.
type outcome struct {
	Granted, Excess int64
	Done            bool
	Results         []Result
	States          []string
}

func outcomeOf(c *Call) outcome {
	o := outcome{Granted: c.Granted, Excess: c.excess, Done: c.done && c.Token != "", Results: c.Results}
	for i, s := range c.states {
		if c.Hits[i].Rule.limit.Algorithm == policy.SlidingLog {
			s.rest = 0 // of a refused hit only, whose RetryAfter it is
		}
		o.States = append(o.States, fmt.Sprintf("%+v", s))
	}
	return o
}

func describeCalls(calls []Call) string {
	var text strings.Builder
	for i, c := range calls {
		fmt.Fprintf(&text, "\n%d: op %d of %d, token %q:", i, c.Op, c.count(), c.Token)
		for _, h := range c.Hits {
			fmt.Fprintf(&text, " [%s at %d, shadow %v, of %d in %v]", h.Key, h.Cost, h.Shadow, h.Rule.Capacity(), h.Rule.limit.Window)
		}
	}
	return text.String()
}

// mixture draws calls of which many are alike.
type mixture struct {
	requests [][]Hit
	window   int64
}

func newMixture(t *rapid.T, prefix string) *mixture {
	window := time.Duration(rapid.IntRange(1, 1000).Draw(t, "window")) * time.Millisecond
	var rules []*Rule
	for range rapid.IntRange(1, 3).Draw(t, "limits") {
		l := limitOf(rapid.SampledFrom(algorithms).Draw(t, "algorithm"), 0, window)
		if rapid.IntRange(0, 9).Draw(t, "slots") == 9 {
			l.Algorithm = policy.Concurrency
		}
		l.Requests = rapid.OneOf(rapid.Int64Range(0, 20), rapid.Int64Range(0, 1000)).Draw(t, "requests")
		l.Burst = rapid.Int64Range(1, 30).Draw(t, "burst")
		l.FirstRequest = l.Algorithm == policy.FixedWindow && rapid.Bool().Draw(t, "anchored")
		rules = append(rules, rule(l))
	}
	return &mixture{window: window.Microseconds(), requests: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) []Hit {
		var hits []Hit
		first := rapid.IntRange(0, len(rules)-1).Draw(t, "first limit")
		for i, r := range rules[first:rapid.IntRange(first+1, len(rules)).Draw(t, "last limit")] {
			i += first
			// With few keys, other requests come in between.
			tag := rapid.SampledFrom([]string{"1:a", "1:b"}).Draw(t, "tag")
			hits = append(hits, Hit{
				Rule: r, Key: CounterKey(KeyBase(prefix, "n", "p", fmt.Sprint(i), r), tag),
				Cost:   rapid.OneOf(rapid.Int64Range(0, 3), rapid.Just(r.Capacity()), rapid.Just(r.Capacity()+1)).Draw(t, "cost"),
				Shadow: rapid.IntRange(0, 3).Draw(t, "shadow") == 0,
			})
		}
		return hits
	}), 1, 3).Draw(t, "kinds of requests")}
}

// run draws a few calls that are alike.
func (m *mixture) run(t *rapid.T) []Call {
	return slices.Repeat([]Call{m.call(t)}, rapid.IntRange(1, 5).Draw(t, "alike"))
}

func (m *mixture) call(t *rapid.T) Call {
	c := Call{
		Hits:       rapid.SampledFrom(m.requests).Draw(t, "request"),
		Token:      rapid.SampledFrom([]string{"x", "y"}).Draw(t, "token"),
		wantStates: rapid.Bool().Draw(t, "states"),
	}
	if rapid.IntRange(0, 3).Draw(t, "is no take") == 3 {
		c.Op = rapid.SampledFrom([]Op{Peek, Refund, Charge, Reserve, Settle, Renew}).Draw(t, "op")
	}
	switch c.Op {
	case Reserve, Settle, Renew:
	default:
		c.Count = rapid.SampledFrom([]int64{1, 1, 1, 2, 7, policy.MaxInteger}).Draw(t, "count")
		if !c.holdsSlots() && rapid.IntRange(0, 7).Draw(t, "no token") > 0 {
			c.Token = ""
		}
	}
	return c
}

func TestLikeRequestsAreOneStep(t *testing.T) {
	of := func(a policy.Algorithm, requests int64) *Rule { return rule(limitOf(a, requests, time.Hour)) }
	window, bucket := of(policy.FixedWindow, 10), of(policy.TokenBucket, 10)
	// So fine that the script can count but a few of these at once.
	fine := rule(Limit{Algorithm: policy.TokenBucket, Requests: 1<<50 + 1, Burst: 1 << 50, Window: 365 * 24 * time.Hour})
	a, b := Hit{Rule: window, Key: "a", Cost: 1}, Hit{Rule: bucket, Key: "b", Cost: 1}
	with := func(h Hit, change func(h *Hit)) Hit {
		change(&h)
		return h
	}
	dear := with(a, func(h *Hit) { h.Cost = 3 })
	shadow := with(a, func(h *Hit) { h.Shadow = true })
	other := with(a, func(h *Hit) { h.Rule = of(policy.FixedWindow, 10) })
	take := func(hits ...Hit) Call { return Call{Hits: hits} }
	for name, test := range map[string]struct {
		calls []Call
		steps int
	}{
		"alike":                          {[]Call{take(a), take(a), take(a)}, 1},
		"alike of several":               {[]Call{take(a, b), take(a, b), {Hits: []Hit{a, b}, Count: 5}}, 1},
		"others' keys in between":        {[]Call{take(a), take(b), take(a), take(b)}, 2},
		"different costs":                {[]Call{take(a), take(dear), take(a), take(dear)}, 4},
		"different rules":                {[]Call{take(a), take(other), take(a)}, 3},
		"enforced and shadow":            {[]Call{take(a), take(shadow), take(a)}, 3},
		"with one more limit":            {[]Call{take(a), take(a, b), take(a), take(a)}, 3},
		"in another order":               {[]Call{take(a, b), take(b, a)}, 2},
		"one of the keys in between":     {[]Call{take(a, b), take(b), take(a, b)}, 3},
		"a look in between":              {[]Call{take(a), {Op: Peek, Hits: []Hit{a}}, take(a)}, 3},
		"looks":                          {[]Call{{Op: Peek, Hits: []Hit{a}}, {Op: Peek, Hits: []Hit{a}}}, 2},
		"refunds":                        {[]Call{{Op: Refund, Hits: []Hit{a}}, {Op: Refund, Hits: []Hit{a}}}, 2},
		"tokens":                         {[]Call{{Hits: []Hit{a}, Token: "x"}, {Hits: []Hit{a}, Token: "x"}, take(a)}, 3},
		"more than is counted in a step": {[]Call{{Hits: []Hit{{Rule: fine, Key: "f", Cost: 1}}, Count: 1 << 50}, take(Hit{Rule: fine, Key: "f", Cost: 1})}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			e := evaluations.New().(*evaluation)
			e.build(prepared(t, test.calls), 0, "")
			diff(t, "steps", len(e.calls), test.steps)
		})
	}
}

// Of like requests the first ones get what there is.
func TestABatchIsGrantedInOrder(t *testing.T) {
	s := simulatedRedis(t, &clock{epoch}, Hooks{})
	for _, a := range algorithms {
		l := limitOf(a, 12, time.Hour)
		hit := Hit{Rule: rule(l), Key: keyOf(t, l), Cost: 2}
		batch := make([]Call, 5)
		for i := range batch {
			batch[i] = Call{Hits: []Hit{hit}, Count: int64(1 + i)} // 1, 2, 3, 4, 5
		}
		diff(t, "steps", inOneCall(t, s, batch), 1)
		var granted, remaining []int64
		for i := range batch {
			granted = append(granted, batch[i].Granted)
			remaining = append(remaining, batch[i].Results[0].Remaining)
		}
		diff(t, string(a)+" granted", granted, []int64{1, 2, 3, 0, 0})
		diff(t, string(a)+" remaining", remaining, []int64{10, 6, 0, 0, 0})
	}
}

// A batch can have as many rules as jobs, and each is counted by its own.
func TestEachJobIsCountedByItsOwnRule(t *testing.T) {
	s := simulatedRedis(t, &clock{epoch}, Hooks{})
	prefix := testredis.Prefix(t)
	batch := make([]Call, maxBatch)
	for i := range batch {
		r := rule(limitOf(algorithms[i%len(algorithms)], int64(1+i), time.Hour))
		batch[i] = Call{Hits: []Hit{{Rule: r, Key: CounterKey(KeyBase(prefix, "n", "p", fmt.Sprint(i), r), "1:a"), Cost: int64(i)}}}
	}
	for round, granted := range []int64{1, 1, 0} { // all but one unit, the last one, and none
		diff(t, "steps", inOneCall(t, s, batch), maxBatch)
		for i := range batch {
			if c := &batch[i]; c.Granted != granted || c.Results[0].Remaining != max(0, int64(1-round)) {
				t.Fatalf("round %d, job %d: %d granted, %+v", round, i, c.Granted, c.Results[0])
			}
			batch[i].Hits[0].Cost = 1
		}
	}
}

// Whatever our clock says, the windows of a calendar are those of the server's
// time: what was sent for another time is not counted, and sent once more. calls
// are the client's.
func testCalendars(t *testing.T, client redis.UniversalClient, calls *counts) {
	for _, test := range []struct {
		period calendar.Period
		ahead  time.Duration // our clock, of the server's
		calls  int
	}{
		{calendar.Month, 0, 1},
		{calendar.Month, 24 * time.Hour, 1},
		{calendar.Month, -40 * 24 * time.Hour, 1}, // the borders reach three windows on
		{calendar.Month, 65 * 24 * time.Hour, 2},
		{calendar.Month, -150 * 24 * time.Hour, 2},
		{calendar.Hour, -90 * time.Minute, 1},
		{calendar.Hour, 5 * time.Hour, 2},
		{calendar.Hour, -5 * time.Hour, 2},
		{calendar.Year, -31 * 24 * time.Hour, 1},
	} {
		t.Run(fmt.Sprintf("%s, %v ahead", test.period, test.ahead), func(t *testing.T) {
			windows, err := calendar.New(test.period, "Europe/Berlin")
			if err != nil {
				t.Fatal(err)
			}
			counted := rule(Limit{Algorithm: policy.FixedWindow, Requests: 10, Calendar: windows})
			plain := rule(limitOf(policy.TokenBucket, 10, 720*time.Hour))
			prefix := testredis.Prefix(t)
			hits := []Hit{
				{Rule: counted, Key: CounterKey(KeyBase(prefix, "n", "p", "c", counted), "1:a"), Cost: 1},
				{Rule: plain, Key: CounterKey(KeyBase(prefix, "n", "p", "b", plain), "1:a"), Cost: 1},
			}
			s := NewRedis(client, RedisOptions{})
			s.ahead.Store(test.ahead.Microseconds())
			before := calls.scripts
			results := take(t, s, hits...)
			diff(t, "remaining", remainingOf(results), []int64{9, 9})
			diff(t, "script calls", calls.scripts-before, test.calls)
			now := time.Now()
			borders := windows.Around(now.UnixMicro())
			ends := time.UnixMicro(borders[2])
			if wait := ends.Sub(now) - results[0].ResetAfter; wait.Abs() > time.Minute {
				t.Errorf("resets in %v, at the border in %v", results[0].ResetAfter, ends.Sub(now))
			}

			// The server's time is known now.
			before = calls.scripts
			diff(t, "remaining", remainingOf(take(t, s, hits...)), []int64{8, 8})
			diff(t, "script calls", calls.scripts-before, 1)
		})
	}
}

// loadScript has all servers of a client know the script.
func loadScript(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	load := func(ctx context.Context, node *redis.Client) error { return decideScript.Load(ctx, node).Err() }
	var err error
	switch client := client.(type) {
	case *redis.Client:
		err = load(t.Context(), client)
	case *redis.ClusterClient:
		err = client.ForEachMaster(t.Context(), load)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestCalendarsGoByTheServersClock(t *testing.T) {
	client := testredis.Shared(t).Client(t)
	loadScript(t, client)
	calls := &counts{}
	client.AddHook(calls)
	testCalendars(t, client, calls)
}

func testCalendarsOnACluster(t *testing.T, cluster *testredis.Cluster) {
	calls := &counts{}
	client := clientWith(t, cluster, calls)
	loadScript(t, client)
	testCalendars(t, client, calls)
}

// R9: a batch that meets a server without the script is sent again with it, and
// once only.
func TestABatchAfterAScriptFlushIsAnswered(t *testing.T) {
	client := testredis.Start(t).Client(t)
	s := NewRedis(client, RedisOptions{})
	var batch []Call
	for i := range 50 {
		r := rule(limitOf(policy.SlidingWindow, 10, 720*time.Hour))
		batch = append(batch, Call{Hits: []Hit{{Rule: r, Key: CounterKey(KeyBase("t", "n", "p", "l", r), fmt.Sprint("1:", i)), Cost: 1}}})
	}
	for round := range int64(3) {
		command(t, client, "SCRIPT", "FLUSH")
		inOneCall(t, s, batch)
		for i := range batch {
			diff(t, fmt.Sprint("remaining of ", i), batch[i].Results[0].Remaining, 9-round)
		}
	}
}

// The same in the pipeline to a node of a cluster, which is sent what other nodes
// have too.
func testPipelines(t *testing.T, cluster *testredis.Cluster) {
	client := cluster.Client(t)
	s := NewRedis(client, RedisOptions{})
	r := rule(limitOf(policy.SlidingWindow, 10, 720*time.Hour))
	base := KeyBase(testredis.Prefix(t), "n", "p", "l", r)
	calls := make([]Call, 50)
	for i := range calls {
		// Two of each tag, in one script call.
		calls[i] = Call{Hits: []Hit{{Rule: r, Key: CounterKey(base, fmt.Sprint("1:", i/2)), Cost: 1}}}
	}
	for round := range int64(3) {
		node, err := client.MasterForKey(t.Context(), calls[round].Hits[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		if err := client.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
			return node.ScriptFlush(ctx).Err()
		}); err != nil {
			t.Fatal(err)
		}
		batch := prepared(t, calls)
		s.sendTo(until{t.Context(), time.Now().Add(time.Minute)}, node, batch)
		for i, f := range batch {
			if f.err != nil {
				t.Fatal(f.err)
			}
			f.conclude(&calls[i])
			diff(t, fmt.Sprint("remaining of ", i), calls[i].Results[0].Remaining, 9-2*round-int64(i%2))
		}
	}
}
