package limiter

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/breaker"
)

// errCircuitOpen means that the server of the counters failed lately, and is not
// asked before it answers again. The call was not sent.
var errCircuitOpen = errors.New("the store has failed and is not asked until it answers again")

// guard breaks the circuit to one server that keeps failing: calls to it are
// refused at once, in place of being waited for. It does not try by calls of
// users whether the server is back, each of which would wait in vain; while the
// circuit is open, a goroutine probes the server, and there is none otherwise.
//
// A guard is safe for concurrent use. That of nobody, nil, lets everything pass.
type guard struct {
	// probe asks the server for something that it can do when it can count. key is
	// one that it was asked for.
	probe   func(ctx context.Context, key string) error
	breaker *breaker.Breaker
	// failed is a key of a call that failed.
	failed atomic.Pointer[string]

	ctx     context.Context // ends with close
	cancel  context.CancelFunc
	mu      sync.Mutex
	closed  bool
	probing sync.WaitGroup
}

const (
	// longestProbePause bounds what is waited between two probes, half to all of
	// it. With the pause of those who dial, and half a second at most, a server
	// that is back is used within a second.
	longestProbePause = 500 * time.Millisecond
	// probeTimeout bounds a probe. The breaker's ProbeTimeout, a second, is above.
	probeTimeout = DefaultTimeout
	// probeTick is how often the breaker is asked whether it is time for a probe.
	probeTick = 20 * time.Millisecond
)

// newGuard returns a guard that tells changed, in order, when the circuit is
// opened and closed.
func newGuard(probe func(ctx context.Context, key string) error, changed func(open bool)) *guard {
	g := &guard{probe: probe}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.breaker = breaker.New(breaker.Options{
		MaxBackoff: longestProbePause,
		OnChange: func(from, to breaker.State) {
			switch {
			case from == breaker.Closed:
				changed(true)
				g.begin()
			case to == breaker.Closed:
				changed(false)
			}
		},
	})
	return g
}

// open says whether calls are refused.
func (g *guard) open() bool { return g != nil && g.breaker.State() != breaker.Closed }

// over returns what sends a batch while the circuit is closed, and learns from
// how that went: each batch is one call on the wire.
func (g *guard) over(send func(context.Context, []*flight)) func(context.Context, []*flight) {
	return func(ctx context.Context, batch []*flight) {
		call, pass := breaker.Call{}, false
		if !g.open() {
			call, pass = g.breaker.Allow()
		}
		if !pass {
			for _, f := range batch {
				f.err = errCircuitOpen
			}
			return
		}
		send(ctx, batch)
		g.learn(call, batch)
	}
}

// learn reports a call. On a cluster, a batch is several script calls: it has
// failed when all of them have.
func (g *guard) learn(call breaker.Call, batch []*flight) {
	if slices.ContainsFunc(batch, func(f *flight) bool { return !storeFailed(f.err) }) {
		call.Succeed()
		return
	}
	key := batch[0].hits[0].key
	g.failed.Store(&key)
	call.Fail()
}

// begin has the server probed until it answers.
func (g *guard) begin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.probing.Go(g.run)
	}
}

func (g *guard) run() {
	tick := time.NewTicker(probeTick)
	defer tick.Stop()
	for g.open() {
		select {
		case <-tick.C:
			g.try()
		case <-g.ctx.Done():
			return
		}
	}
}

// try probes the server if it is time to.
func (g *guard) try() {
	call, now := g.breaker.Allow()
	if !now {
		return
	}
	ctx, cancel := context.WithTimeout(g.ctx, probeTimeout)
	defer cancel()
	if storeFailed(g.probe(ctx, *g.failed.Load())) {
		call.Fail()
	} else {
		call.Succeed()
	}
}

// close ends the probing, and waits for its end within the context.
func (g *guard) close(ctx context.Context) {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.cancel()
	ended := make(chan struct{})
	go func() {
		g.probing.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// storeFailed says whether an error tells of a server that cannot be reached in
// time, or cannot count at present. Other errors are about a call, or about us.
func storeFailed(err error) bool {
	switch {
	case err == nil, errors.Is(err, ErrInvalid), errors.Is(err, ErrOverloaded),
		errors.Is(err, errCircuitOpen), errors.Is(err, context.Canceled), errors.Is(err, redis.ErrClosed):
		return false
	}
	if _, replied := errors.AsType[redis.Error](err); !replied {
		return true
	}
	return slices.ContainsFunc(
		[]string{"READONLY", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "OOM", "MISCONF", "NOREPLICAS", "BUSY"},
		func(prefix string) bool { return redis.HasErrorPrefix(err, prefix) },
	)
}
