package limiter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// reply is an error that a server answered.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

func TestWhatTellsOfAServerThatFails(t *testing.T) {
	for err, want := range map[error]bool{
		nil:                                  false,
		fmt.Errorf("%w hit", ErrInvalid):     false,
		ErrOverloaded:                        false,
		errCircuitOpen:                       false,
		context.Canceled:                     false,
		redis.ErrClosed:                      false,
		reply("NOPERM no permissions"):       false,
		reply("MOVED 1 127.0.0.1:1"):         false,
		reply("ERR value is not an integer"): false,
		context.DeadlineExceeded:             true,
		errLate:                              true,
		io.EOF:                               true,
		errReply:                             true,
		redis.ErrPoolTimeout:                 true,
		&net.OpError{Op: "dial", Err: errors.New("connection refused")}: true,
		reply("READONLY You can't write against a read only replica."):  true,
		reply("LOADING Redis is loading the dataset in memory"):         true,
		reply("CLUSTERDOWN The cluster is down"):                        true,
		reply("OOM command not allowed when used memory > 'maxmemory'"): true,
		reply("MISCONF Redis is configured to save RDB snapshots"):      true,
		reply("BUSY Redis is busy running a script"):                    true,
	} {
		if got := storeFailed(err); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
		if err != nil && storeFailed(fmt.Errorf("ask: %w", err)) != want {
			t.Errorf("wrapped, %v is something else", err)
		}
	}
}

// guarded is a guard of a server whose answer a test sets.
type guarded struct {
	*guard
	answer        atomic.Pointer[error]
	probes, sends atomic.Int64
	told          chan bool
	send          func(context.Context, []*flight)
}

func (g *guarded) set(err error) { g.answer.Store(&err) }

func newGuarded() *guarded {
	g := &guarded{told: make(chan bool, 100)}
	g.set(nil)
	g.guard = newGuard(func(_ context.Context, key string) error {
		g.probes.Add(1)
		if key != "failed" {
			return reply("ERR this is not the key of a call that failed")
		}
		return *g.answer.Load()
	}, func(open bool) { g.told <- open })
	g.send = g.over(func(_ context.Context, batch []*flight) {
		g.sends.Add(1)
		for _, f := range batch {
			f.err = *g.answer.Load()
		}
	})
	return g
}

func batchOf(n int) []*flight {
	batch := make([]*flight, n)
	for i := range batch {
		batch[i] = &flight{job: job{hits: []decision{{key: "failed"}}}}
	}
	return batch
}

// call sends a batch of jobs, and returns the error of the last.
func (g *guarded) call(n int) error {
	batch := batchOf(n)
	g.send(context.Background(), batch)
	return batch[n-1].err
}

func TestACircuitOpensAndTheGuardFindsWhenToCloseIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded()
		defer g.close(t.Context())
		g.set(errDown)
		for range 5 {
			if g.open() {
				t.Fatal("the circuit is open too early")
			}
			_ = g.call(100) // failed once, not a hundred times
		}
		diff(t, "told", <-g.told, true)
		sends := g.sends.Load()
		if err := g.call(2); !errors.Is(err, errCircuitOpen) || g.sends.Load() != sends {
			t.Errorf("while open, a call is sent: %v", err)
		}

		time.Sleep(10 * time.Second)
		// At first after 50 to 100 ms, in the end after 250 to 520.
		if n := g.probes.Load(); n < 19 || n > 42 || g.sends.Load() != sends {
			t.Errorf("%d probes in 10 s, %d calls", n, g.sends.Load()-sends)
		}
		g.set(nil)
		back := time.Now()
		diff(t, "told", <-g.told, false)
		if took := time.Since(back); took > longestProbePause+probeTick {
			t.Errorf("that the server is back was seen after %v", took)
		}
		if err := g.call(1); err != nil || g.open() {
			t.Errorf("closed again: %v", err)
		}
		probes := g.probes.Load()
		time.Sleep(time.Minute)
		diff(t, "probes afterwards", g.probes.Load(), probes)
	})
}

func TestABatchHasFailedWhenAllOfItHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded()
		defer g.close(t.Context())
		half := g.over(func(_ context.Context, batch []*flight) { batch[0].err, batch[1].err = errDown, reply("NOPERM") })
		for range 20 {
			half(t.Context(), batchOf(2))
		}
		diff(t, "open", g.open(), false)
	})
}

func TestACloseEndsTheProbing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded()
		g.set(errDown)
		for range 5 {
			_ = g.call(1)
		}
		g.close(t.Context())
		probes := g.probes.Load()
		time.Sleep(time.Minute)
		diff(t, "probes after the close", g.probes.Load(), probes)

		g = newGuarded()
		g.close(t.Context())
		g.set(errDown)
		for range 5 {
			_ = g.call(1)
		}
		time.Sleep(time.Minute)
		diff(t, "probes of a guard that was closed before", g.probes.Load(), 0)
	})
}

// circuits are a store's, with what it tells of them.
func circuits(t *testing.T, client redis.UniversalClient) (s *Redis, told chan bool) {
	told = make(chan bool, 100)
	s = NewRedis(client, RedisOptions{Hooks: Hooks{BreakerChanged: func(open bool) { told <- open }}})
	t.Cleanup(func() { s.Close(context.Background()) })
	return s, told
}

// impatient is a client that ends what has a deadline, and repeats nothing.
func impatient(t *testing.T, addr string) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// askUntil asks every 5 ms until a store tells of a change, and says how long
// that took.
func askUntil(t *testing.T, s *Redis, h Hit, told chan bool, want bool) time.Duration {
	t.Helper()
	began := time.Now()
	limit := time.After(10 * time.Second)
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	for {
		select {
		case open := <-told:
			diff(t, "open", open, want)
			return time.Since(began)
		case <-limit:
			t.Fatalf("it is not told in 10 s that open is %v", want)
		case <-pace.C:
			_ = s.Do(t.Context(), &Call{Hits: []Hit{h}, Timeout: 50 * time.Millisecond})
		}
	}
}

// answeredAtOnce has many callers ask while the circuit is open.
func answeredAtOnce(t *testing.T, s *Redis, h Hit) {
	t.Helper()
	began := time.Now()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 200 {
				if err := s.Do(t.Context(), &Call{Hits: []Hit{h}}); !errors.Is(err, errCircuitOpen) {
					t.Errorf("while open: %v", err)
				}
			}
		})
	}
	wg.Wait()
	// A single one that waits takes DefaultTimeout.
	if took := time.Since(began); took > DefaultTimeout/2 {
		t.Errorf("3200 callers were answered after %v", took)
	}
}

func TestAServerThatFailsIsNotAskedUntilItIsBack(t *testing.T) {
	h := Hit{Rule: rule(limitOf(policy.TokenBucket, 1<<40, time.Hour)), Key: "k", Cost: 1}
	for name, fault := range map[string]struct {
		fail, mend func(server *testredis.Server, client *redis.Client)
	}{
		"killed and restarted": {
			func(server *testredis.Server, _ *redis.Client) { server.Kill() },
			func(server *testredis.Server, _ *redis.Client) { server.Restart(t) },
		},
		"stopped": {
			func(server *testredis.Server, _ *redis.Client) { server.Pause() },
			func(server *testredis.Server, _ *redis.Client) { server.Resume() },
		},
		"out of memory": {
			func(_ *testredis.Server, client *redis.Client) { command(t, client, "CONFIG", "SET", "maxmemory", "1") },
			func(_ *testredis.Server, client *redis.Client) { command(t, client, "CONFIG", "SET", "maxmemory", "0") },
		},
		"a replica": {
			func(_ *testredis.Server, client *redis.Client) {
				command(t, client, "CONFIG", "SET", "replica-serve-stale-data", "yes")
				command(t, client, "REPLICAOF", "127.0.0.1", "1")
			},
			func(_ *testredis.Server, client *redis.Client) { command(t, client, "REPLICAOF", "NO", "ONE") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := testredis.Start(t)
			s, told := circuits(t, impatient(t, server.Addr))
			take(t, s, h)
			fault.fail(server, server.Client(t))
			askUntil(t, s, h, told, true)
			answeredAtOnce(t, s, h)
			fault.mend(server, server.Client(t))
			if took := askUntil(t, s, h, told, false); took > 2*time.Second {
				t.Errorf("that the server is back was seen after %v", took)
			}
			take(t, s, h)
		})
	}
}

// A master that is lost leaves the circuits to the others closed.
func TestOnAClusterEachMasterHasItsCircuit(t *testing.T) {
	cluster := testredis.StartCluster(t, 3, "--cluster-require-full-coverage", "no")
	s, told := circuits(t, cluster.Client(t))
	lost := cluster.Servers[1]
	of := func(server bool) Hit {
		for i := range 1000 {
			key := fmt.Sprintf("k%d:{1:%d}", i, i)
			if (cluster.Owner(t, key) == lost) == server {
				return Hit{Rule: rule(limitOf(policy.FixedWindow, 1<<40, time.Hour)), Key: key, Cost: 1}
			}
		}
		t.Fatal("there is no such key")
		return Hit{}
	}
	gone, there := of(true), of(false)
	take(t, s, gone)
	take(t, s, there)
	lost.Kill()
	askUntil(t, s, gone, told, true)
	answeredAtOnce(t, s, gone)
	take(t, s, there)
}

func BenchmarkOpenCircuit(b *testing.B) {
	server := testredis.Start(b)
	s := NewRedis(server.Client(b), RedisOptions{})
	defer s.Close(b.Context())
	server.Kill()
	c := &Call{Hits: []Hit{{Rule: rule(limitOf(policy.TokenBucket, 10, time.Hour)), Key: "k", Cost: 1}}}
	for !errors.Is(s.Do(b.Context(), c), errCircuitOpen) {
	}
	b.ReportAllocs()
	for b.Loop() {
		_ = s.Do(b.Context(), c)
	}
}
