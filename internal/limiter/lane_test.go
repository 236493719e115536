package limiter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// station is a lane whose calls a test answers, within a bubble.
type station struct {
	*lane
	t *testing.T
	// calls are those that were sent and not looked at yet.
	calls chan *sent
	// late are the jobs whose callers had left, and how they had fared. Each call
	// tells of its own, at the same time as others.
	lateMu sync.Mutex
	late   []string
}

// sent is a call under way.
type sent struct {
	jobs      []string
	goroutine string
	deadline  time.Time
	back      chan error
}

func newStation(t *testing.T) *station {
	s := &station{t: t, calls: make(chan *sent, 10)}
	s.lane = &lane{
		send: func(ctx context.Context, batch []*flight) {
			c := &sent{goroutine: goroutine(), back: make(chan error)}
			c.deadline, _ = ctx.Deadline()
			for _, f := range batch {
				c.jobs = append(c.jobs, f.hits[0].key)
			}
			s.calls <- c
			err := <-c.back
			for _, f := range batch {
				f.err = err
			}
		},
		late: func(f *flight) {
			s.lateMu.Lock()
			defer s.lateMu.Unlock()
			s.late = append(s.late, fmt.Sprint(f.hits[0].key, " ", f.err))
		},
	}
	return s
}

// goroutine names the one that asks.
func goroutine() string {
	stack := make([]byte, 64)
	name, _, _ := bytes.Cut(stack[:runtime.Stack(stack, false)], []byte(" ["))
	return string(name)
}

// caller is somebody who waits for a job.
type caller struct {
	goroutine string
	leave     context.CancelFunc
	// These are set when the caller is back.
	back    bool
	mine    bool
	err     error
	waited  time.Duration
	started time.Time
}

// A job's deadline in most tests.
const patience = time.Second

func newFlight(name string, timeout time.Duration) *flight {
	f := flights.New().(*flight)
	f.hits = []decision{{key: name}}
	f.setTimeout(timeout)
	return f
}

// call has a caller that can leave do a job, and lets it come as far as it gets.
func (s *station) call(name string, timeout time.Duration) *caller {
	return s.carry(newFlight(name, timeout))
}

func (s *station) carry(f *flight) *caller {
	ctx, cancel := context.WithCancel(context.Background())
	return s.carryWith(ctx, cancel, f)
}

// carryStaying has a caller that cannot leave carry a job.
func (s *station) carryStaying(f *flight) *caller {
	return s.carryWith(context.Background(), func() {}, f)
}

func (s *station) carryWith(ctx context.Context, cancel context.CancelFunc, f *flight) *caller {
	c := &caller{leave: cancel, started: time.Now()}
	go func() {
		defer cancel()
		c.goroutine = goroutine()
		c.mine, c.err = s.do(ctx, f)
		c.back, c.waited = true, time.Since(c.started)
	}()
	synctest.Wait()
	return c
}

// busy has maxUnderWay calls under way, and returns them.
func (s *station) busy() []*sent {
	var calls []*sent
	for i := range maxUnderWay {
		name := fmt.Sprint("busy", i)
		s.call(name, time.Hour)
		calls = append(calls, s.next(name))
	}
	return calls
}

// next is the call that was sent next, which has these jobs.
func (s *station) next(jobs ...string) *sent {
	s.t.Helper()
	select {
	case c := <-s.calls:
		diff(s.t, "jobs of a call", c.jobs, jobs)
		return c
	default:
		s.t.Fatalf("no call was sent for %v", jobs)
		return nil
	}
}

// answer has a call come back.
func (s *station) answer(calls ...*sent) {
	for _, c := range calls {
		c.back <- nil
	}
	synctest.Wait()
}

// sentNothing checks that no other call was sent.
func (s *station) sentNothing() {
	s.t.Helper()
	select {
	case c := <-s.calls:
		s.t.Fatalf("a call was sent for %v", c.jobs)
	default:
	}
}

// pass lets time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// served checks that a caller has its job back, answered, after a time.
func (c *caller) served(t *testing.T, after time.Duration) {
	t.Helper()
	if !c.back || !c.mine || c.err != nil || c.waited != after {
		t.Fatalf("back %v, mine %v, %v after %v; want an answer after %v", c.back, c.mine, c.err, c.waited, after)
	}
}

// gone checks that a caller has left its job after a time.
func (c *caller) gone(t *testing.T, after time.Duration, want error) {
	t.Helper()
	if !c.back || c.mine || !errors.Is(c.err, want) || c.waited != after {
		t.Fatalf("back %v, mine %v, %v after %v; want %v after %v", c.back, c.mine, c.err, c.waited, want, after)
	}
}

func inStation(t *testing.T, test func(t *testing.T, s *station)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newStation(t)
		test(t, s)
		if s.underWay != 0 || len(s.waiting) != 0 || s.trains != [maxUnderWay]*train{} {
			t.Errorf("at the end %d calls are under way, %d jobs wait, trains %v", s.underWay, len(s.waiting), s.trains)
		}
	})
}

func TestALoneJobIsSentAtOnce(t *testing.T) {
	inStation(t, func(t *testing.T, s *station) {
		s.proven = true
		c := s.carryStaying(newFlight("a", patience))
		call := s.next("a")
		if call.goroutine != c.goroutine {
			t.Errorf("sent by %s, of %s", call.goroutine, c.goroutine)
		}
		if s.alarm != nil {
			t.Error("there is a timer for a job that its caller carries")
		}
		if want := c.started.Add(patience); !call.deadline.Equal(want) {
			t.Errorf("the call's deadline is %v, want %v", call.deadline, want)
		}
		s.answer(call)
		c.served(t, 0)

		c = s.call("b", patience)
		s.answer(s.next("b"))
		c.served(t, 0)
	})
}

func TestJobsThatWaitLeaveTogetherInOrder(t *testing.T) {
	inStation(t, func(t *testing.T, s *station) {
		calls := s.busy()
		var callers []*caller
		for _, name := range []string{"a", "b", "c"} {
			callers = append(callers, s.call(name, patience))
		}
		s.sentNothing()
		s.answer(calls[1])
		call := s.next("a", "b", "c")

		// Meanwhile others wait.
		callers = append(callers, s.call("d", patience), s.call("e", patience))
		s.sentNothing()
		s.answer(call)
		s.answer(s.next("d", "e"))
		for _, c := range callers {
			c.served(t, 0)
		}

		// With a call under way that makes room for another, nobody waits.
		c := s.call("f", patience)
		s.answer(s.next("f"), calls[0])
		c.served(t, 0)
	})
}

// callMany has so many callers do a job each.
func (s *station) callMany(n int) (names []string, callers []*caller) {
	for i := range n {
		names = append(names, fmt.Sprint(i))
		callers = append(callers, s.call(names[i], patience))
	}
	return names, callers
}

func TestACallHasAMostOfJobs(t *testing.T) {
	inStation(t, func(t *testing.T, s *station) {
		calls := s.busy()
		names, callers := s.callMany(2*maxBatch + 3)
		s.answer(calls[0])
		first := s.next(names[:maxBatch]...)
		s.answer(calls[1])
		second := s.next(names[maxBatch : 2*maxBatch]...)
		s.answer(first)
		s.answer(s.next(names[2*maxBatch:]...), second)
		for _, c := range callers {
			c.served(t, 0)
		}
	})
}

// Redis has work while the callers of one call come again.
func TestCallsShareManyJobsEvenly(t *testing.T) {
	inStation(t, func(t *testing.T, s *station) {
		calls := s.busy()
		names, callers := s.callMany(2*minShare + 1)
		s.answer(calls[0])
		first := s.next(names[:minShare+1]...)
		s.sentNothing()
		s.answer(calls[1])
		s.answer(s.next(names[minShare+1:]...), first)
		for _, c := range callers {
			c.served(t, 0)
		}
	})
}

func TestAFullQueueTakesNoMore(t *testing.T) {
	inStation(t, func(t *testing.T, s *station) {
		calls := s.busy()
		left := newFlight("left", patience)
		left.phase.Store(abandoned)
		for range maxWaiting {
			s.waiting = append(s.waiting, left)
		}
		c := s.call("one more", patience)
		if !c.back || !c.mine || !errors.Is(c.err, ErrOverloaded) || c.waited != 0 {
			t.Fatalf("back %v, mine %v, %v after %v", c.back, c.mine, c.err, c.waited)
		}
		s.answer(calls...)
		s.sentNothing()
	})
}

func TestACallerThatLeavesTheQueueIsNotSent(t *testing.T) {
	inStation(t, func(t *testing.T, s *station) {
		calls := s.busy()
		a, b := s.call("a", patience), s.call("b", patience)
		a.leave()
		synctest.Wait()
		a.gone(t, 0, context.Canceled)
		s.answer(calls...)
		s.answer(s.next("b"))
		b.served(t, 0)
		diff(t, "late", s.late, []string{"a not sent"})
	})
}

func TestACallerLeavesACallUnderWay(t *testing.T) {
	inStation(t, func(t *testing.T, s *station) {
		alone := s.call("alone", patience)
		call := s.next("alone")
		alone.leave()
		synctest.Wait()
		alone.gone(t, 0, context.Canceled)
		diff(t, "late before the answer", s.late, nil)
		s.answer(call)
		diff(t, "late", s.late, []string{"alone <nil>"})

		calls := s.busy()
		a, b := s.call("a", patience), s.call("b", patience)
		s.answer(calls...)
		call = s.next("a", "b")
		a.leave()
		synctest.Wait()
		a.gone(t, 0, context.Canceled)
		s.answer(call)
		b.served(t, 0)
		diff(t, "late", s.late, []string{"alone <nil>", "a <nil>"})
	})
}

// A caller whose answer is there takes it, though its context has ended too.
func TestAnAnswerThatIsThereIsTaken(t *testing.T) {
	inStation(t, func(t *testing.T, s *station) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		f := newFlight("a", patience)
		f.phase.Store(arrived)
		if mine, err := s.await(ctx, f); !mine || err != nil {
			t.Fatalf("mine %v, %v", mine, err)
		}
	})
}

// Behind calls that hang, each caller waits as long as it has said itself.
func TestEachJobHasItsOwnDeadline(t *testing.T) {
	ms := time.Millisecond
	timeouts := []time.Duration{100 * ms, 50 * ms, 200 * ms, 50 * ms, 10 * ms, 150 * ms}
	for name, board := range map[string]bool{"in the queue": false, "under way": true} {
		t.Run(name, func(t *testing.T) {
			inStation(t, func(t *testing.T, s *station) {
				calls := s.busy()
				var names []string
				var callers []*caller
				for i, timeout := range timeouts {
					names = append(names, fmt.Sprint(i))
					callers = append(callers, s.call(names[i], timeout))
				}
				if board {
					s.answer(calls[0])
					call := s.next(names...)
					if got, want := call.deadline, callers[0].started.Add(200*ms); !got.Equal(want) {
						t.Errorf("the call's deadline is %v, want that of the most patient caller, %v", got, want)
					}
					calls[0] = call
				}
				pass(patience)
				for i, c := range callers {
					c.gone(t, timeouts[i], context.DeadlineExceeded)
				}
				s.answer(calls...)
				s.sentNothing()
				diff(t, "jobs handed on", len(s.late), len(timeouts))
			})
		})
	}
}

// What does not end of itself, such as the attempt to connect to a server that
// does not answer, keeps nobody.
func TestALoneJobHasADeadlineToo(t *testing.T) {
	inStation(t, func(t *testing.T, s *station) {
		a := s.call("a", 30*time.Millisecond)
		b := s.call("b", 20*time.Millisecond)
		pass(patience)
		a.gone(t, 30*time.Millisecond, context.DeadlineExceeded)
		b.gone(t, 20*time.Millisecond, context.DeadlineExceeded)
		s.answer(s.next("a"), s.next("b"))
	})
}

// Nor does it keep who cannot leave, unless all was well the last time.
func TestACallerThatCannotLeaveDoesNotConnectItself(t *testing.T) {
	inStation(t, func(t *testing.T, s *station) {
		ms := time.Millisecond
		first := s.carryStaying(newFlight("first", 30*ms))
		call := s.next("first")
		pass(patience)
		first.gone(t, 30*ms, context.DeadlineExceeded)
		s.answer(call)

		second := s.carryStaying(newFlight("second", 30*ms))
		call = s.next("second")
		if call.goroutine != second.goroutine {
			t.Error("after an answer it is not sent by its own goroutine")
		}
		call.back <- io.EOF
		synctest.Wait()

		third := s.carryStaying(newFlight("third", 30*ms))
		call = s.next("third")
		pass(patience)
		third.gone(t, 30*ms, context.DeadlineExceeded)
		s.answer(call)
	})
}

// A deadline that nobody waits for any more makes no trouble for those who come
// later.
func TestTheAlarmServesThoseWhoComeLater(t *testing.T) {
	inStation(t, func(t *testing.T, s *station) {
		ms := time.Millisecond
		first := s.call("first", 10*ms)
		s.answer(s.next("first"))
		first.served(t, 0)

		calls := s.busy()
		pass(5 * ms)
		a := s.call("a", 10*ms) // after the alarm for first
		pass(9 * ms)
		if a.back {
			t.Fatalf("%v after %v", a.err, a.waited)
		}
		b := s.call("b", 20*ms)
		pass(patience)
		a.gone(t, 10*ms, context.DeadlineExceeded)
		b.gone(t, 20*ms, context.DeadlineExceeded)
		s.answer(calls...)
	})
}

func TestAStaleWakeUpEndsNoWait(t *testing.T) {
	inStation(t, func(t *testing.T, s *station) {
		f, g := newFlight("f", patience), newFlight("g", patience)
		f.wake()
		g.wake()
		alone := s.carry(f)
		s.call("busy", time.Hour)
		queued := s.carry(g)
		for range 3 {
			f.wake()
			g.wake()
			synctest.Wait()
			if alone.back || queued.back {
				t.Fatalf("alone %+v, queued %+v", alone, queued)
			}
		}
		s.answer(s.next("f"), s.next("busy"))
		alone.served(t, 0)
		s.answer(s.next("g"))
		queued.served(t, 0)
	})
}

// bank is a send that grants all that is asked for, and keeps accounts. What it
// tells of a counter is the number in the counter's key.
type bank struct {
	t     *testing.T
	taken atomic.Int64
}

func (b *bank) send(_ context.Context, batch []*flight) {
	keys := make([]string, len(batch))
	for i, f := range batch {
		keys[i] = f.hits[0].key
		number, err := strconv.ParseInt(keys[i], 10, 64)
		if err != nil {
			b.t.Errorf("key %q: %v", keys[i], err)
		}
		f.hits[0].state = state{used: number}
		f.granted = [...]int64{enforced: f.count, shadow: f.count}
		f.err = nil
		if f.verb == verbTake {
			b.taken.Add(f.count)
		} else {
			b.taken.Add(-f.count)
		}
	}
	runtime.Gosched()
	for i, f := range batch {
		if f.hits[0].key != keys[i] {
			b.t.Errorf("the job for %s became one for %s under way", keys[i], f.hits[0].key)
		}
	}
}

// Whoever leaves, and whenever, each caller that stays has its own answer, and
// what those were granted who left is given back. With -race this shows too that
// nobody touches a flight that is another's.
func TestCallersComeAndGo(t *testing.T) {
	const callers, each, limit = 32, 500, 1 << 40
	b := &bank{t: t}
	var kept, lost atomic.Int64
	s := &Redis{hooks: Hooks{GivenBack: func(n int64, err error) {
		if err != nil {
			lost.Add(n)
		}
	}}}
	s.only = &lane{send: b.send, late: s.giveBackLate}
	r := rule(limitOf(policy.FixedWindow, limit, time.Hour))
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for i := range each {
				number := int64(caller*each + i)
				c := Call{Hits: []Hit{{Rule: r, Key: strconv.FormatInt(number, 10), Cost: 1}}, Count: rand.Int64N(3)}
				err := leaveSometime(t, s, &c)
				switch {
				case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
				case err != nil:
					t.Error(err)
				default:
					kept.Add(c.Granted)
					// Those that are counted with the call are used too.
					if r := c.Results[0]; r.Remaining != limit-number-c.count() {
						t.Errorf("the call for %d got %+v", number, r)
					}
				}
			}
		})
	}
	wg.Wait()
	within(t, "what was not kept is given back", func() bool {
		unknown := lost.Load()
		excess := b.taken.Load() - kept.Load()
		return excess >= 0 && excess <= unknown && s.only.idle()
	})
	if kept.Load() == 0 {
		t.Error("no caller stayed")
	}
}

// leaveSometime does a call whose caller stays, has left, leaves, or has little
// time.
func leaveSometime(t *testing.T, s Store, c *Call) error {
	switch rand.IntN(5) {
	case 0:
		return s.Do(context.Background(), c)
	case 1:
		c.Timeout = time.Duration(rand.IntN(100)) * time.Microsecond
		return s.Do(t.Context(), c)
	case 2:
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return s.Do(ctx, c)
	case 3:
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(100))*time.Microsecond)
		defer cancel()
		return s.Do(ctx, c)
	default:
		return s.Do(t.Context(), c)
	}
}

// idle says whether nothing is under way.
func (l *lane) idle() bool { return l.has(0, 0) }

// has says whether so many calls are under way, and so many jobs wait.
func (l *lane) has(underWay, waiting int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.underWay == underWay && len(l.waiting) == waiting
}

// within waits for what another process, or goroutines, bring about soon.
func within(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for start := time.Now(); !holds(); runtime.Gosched() {
		if time.Since(start) > 10*time.Second {
			t.Fatalf("after 10 s: not %s", what)
		}
	}
}

// held is a Redis behind a proxy that holds its answers back.
type held struct {
	*Redis
	proxy *testredis.Proxy
	// direct asks without the proxy.
	direct *Redis
	// told is what the hook was told.
	told chan int64
}

func newHeld(t *testing.T) *held {
	t.Helper()
	server := testredis.Shared(t)
	h := &held{proxy: testredis.StartProxy(t, server), direct: NewRedis(server.Client(t), RedisOptions{}), told: make(chan int64, 10)}
	client := redis.NewClient(&redis.Options{Addr: h.proxy.Addr, ContextTimeoutEnabled: true, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	h.Redis = NewRedis(client, RedisOptions{Hooks: Hooks{GivenBack: func(n int64, err error) {
		if err != nil {
			t.Errorf("%d requests were not given back: %v", n, err)
		}
		h.told <- n
	}}})
	return h
}

// leave has a call come as far as it gets, and its caller leave.
func (h *held) leave(t *testing.T, c Call, underWay, waiting int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error)
	c.Timeout = time.Minute
	go func() { left <- h.Do(ctx, &c) }()
	within(t, "the call has come as far as it gets", func() bool { return h.only.has(underWay, waiting) })
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Fatalf("a caller that left got %v", err)
	}
}

// toldOf waits for what the hook is told.
func (h *held) toldOf(t *testing.T, requests int64) {
	t.Helper()
	within(t, "told", func() bool { return len(h.told) > 0 })
	diff(t, "told", <-h.told, requests)
}

func TestWhatACallerIsGrantedThatLeftIsGivenBack(t *testing.T) {
	hit := func(a policy.Algorithm, requests, cost int64) Hit {
		h := Hit{Rule: rule(limitOf(a, requests, 720*time.Hour)), Cost: cost}
		h.Key = keyOf(t, h.Rule.Limit())
		return h
	}
	shadowed := func(h Hit) Hit {
		h.Shadow = true
		return h
	}
	full := hit(policy.FixedWindow, 10, 10)
	do(t, NewRedis(testredis.Shared(t).Client(t), RedisOptions{}), Call{Hits: []Hit{full}})
	full.Cost = 1

	for name, test := range map[string]struct {
		call  Call
		given int64   // what the hook is told; 0: nothing
		left  []int64 // remaining units afterwards
	}{
		"a take":                 {Call{Hits: []Hit{hit(policy.FixedWindow, 10, 3)}}, 1, []int64{10}},
		"a bucket's":             {Call{Hits: []Hit{hit(policy.TokenBucket, 10, 3)}}, 1, []int64{10}},
		"a log's":                {Call{Hits: []Hit{hit(policy.SlidingLog, 10, 3)}}, 1, []int64{10}},
		"several":                {Call{Hits: []Hit{hit(policy.SlidingWindow, 10, 3)}, Count: 2}, 2, []int64{10}},
		"a part of several":      {Call{Hits: []Hit{hit(policy.FixedWindow, 10, 3)}, Count: 5}, 3, []int64{10}},
		"two limits":             {Call{Hits: []Hit{hit(policy.FixedWindow, 10, 3), hit(policy.TokenBucket, 9, 1)}}, 1, []int64{10, 9}},
		"with a shadow":          {Call{Hits: []Hit{hit(policy.FixedWindow, 10, 3), shadowed(hit(policy.FixedWindow, 9, 1))}}, 1, []int64{10, 9}},
		"with a full shadow":     {Call{Hits: []Hit{hit(policy.FixedWindow, 10, 3), shadowed(full)}}, 1, []int64{10, 0}},
		"with a fuller one":      {Call{Hits: []Hit{hit(policy.FixedWindow, 10, 3), shadowed(hit(policy.FixedWindow, 2, 1))}, Count: 3}, 3, []int64{10, 2}},
		"a slot":                 {Call{Hits: []Hit{hit(policy.Concurrency, 10, 1)}, Token: "me"}, 1, []int64{10}},
		"a reservation":          {Call{Op: Reserve, Hits: []Hit{hit(policy.FixedWindow, 10, 3)}, Token: "me"}, 1, []int64{10}},
		"one with a slot":        {Call{Op: Reserve, Hits: []Hit{hit(policy.FixedWindow, 10, 3), hit(policy.Concurrency, 9, 1)}, Token: "me"}, 1, []int64{10, 9}},
		"what was refused":       {Call{Hits: []Hit{full}}, 0, []int64{0}},
		"a peek":                 {Call{Op: Peek, Hits: []Hit{hit(policy.FixedWindow, 10, 3)}}, 0, []int64{10}},
		"a charge, which is due": {Call{Op: Charge, Hits: []Hit{hit(policy.FixedWindow, 10, 3)}}, 0, []int64{7}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHeld(t)
			peek(t, h, full) // connect
			within(t, "connected", h.only.idle)
			h.proxy.Hold()
			h.leave(t, test.call, 1, 0)
			h.proxy.Release()
			if test.given > 0 {
				h.toldOf(t, test.given)
			}
			within(t, "all calls are back", h.only.idle)
			diff(t, "remaining", remainingOf(peek(t, h.direct, test.call.Hits...)), test.left)
			diff(t, "told too often", len(h.told), 0)
		})
	}
}

// Of like requests in one step those that left are given back, and no others.
func TestOneOfManyLeaves(t *testing.T) {
	h := newHeld(t)
	hit := Hit{Rule: rule(limitOf(policy.FixedWindow, 10, 720*time.Hour)), Cost: 1}
	hit.Key = keyOf(t, hit.Rule.Limit())
	var connected sync.WaitGroup
	for range 2 * maxUnderWay { // as many connections as there are calls
		connected.Go(func() { peek(t, h, hit) })
	}
	connected.Wait()
	within(t, "all are back", h.only.idle)

	h.proxy.Hold()
	var staying sync.WaitGroup
	stay := func(underWay, waiting int) {
		staying.Go(func() {
			if c := (Call{Hits: []Hit{hit}, Timeout: time.Minute}); h.Do(t.Context(), &c) != nil || c.Granted != 1 {
				t.Errorf("one who stays got %+v", c)
			}
		})
		within(t, "on its way", func() bool { return h.only.has(underWay, waiting) })
	}
	stay(1, 0)
	h.leave(t, Call{Hits: []Hit{hit}}, 2, 0) // under way
	stay(2, 1)
	h.leave(t, Call{Hits: []Hit{hit}}, 2, 2) // in the queue
	stay(2, 3)
	h.proxy.Release()
	staying.Wait()
	h.toldOf(t, 1)
	within(t, "all calls are back", h.only.idle)
	diff(t, "remaining", remainingOf(peek(t, h.direct, hit)), []int64{7})
	diff(t, "told too often", len(h.told), 0)
}
