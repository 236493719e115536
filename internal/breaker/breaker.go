package breaker

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// State is what a breaker does with calls.
type State int32

const (
	// Closed lets all calls through.
	Closed State = iota
	// Open refuses all calls, until it is time for a probe.
	Open
	// HalfOpen refuses all calls while one, the probe, is under way.
	HalfOpen
)

// String is the state's name in metrics and logs.
func (s State) String() string {
	switch s {
	case Closed:
		return "closed"
	case Open:
		return "open"
	default:
		return "half-open"
	}
}

// Options say when a breaker opens, and when it tries again. What is zero has the
// default.
type Options struct {
	// Failures is how many calls in a row must fail for the breaker to open. Default 5.
	Failures int
	// MinBackoff and MaxBackoff bound the wait before a probe, which doubles with
	// each probe that fails. A random part, half to all of it, is waited: breakers
	// that opened together do not probe together. Default 100 ms and 1 s.
	MinBackoff, MaxBackoff time.Duration
	// ProbeTimeout is how long a probe may take to tell its result. One that has
	// not by then counts as failed, and another goes. It should be longer than the
	// deadline of a call. Default 1 s.
	ProbeTimeout time.Duration
	// OnChange is told every change of state, in order. It runs while results are
	// held up: it must not block, and may call nothing of the breaker but State.
	OnChange func(from, to State)
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Random returns a number in [0, 1). It is not called concurrently. Default
	// math/rand's.
	Random func() float64
}

// Breaker is a circuit breaker. It is safe for concurrent use.
type Breaker struct {
	options Options
	phase   atomic.Pointer[phase] // replaced with mu held
	mu      sync.Mutex
}

// phase is all that a breaker knows. It is immutable.
type phase struct {
	state State
	// number increases with each change of state: results of calls that were let
	// through in another phase say nothing of this one.
	number uint64
	// failures is how many calls failed in a row, while closed.
	failures int
	// probes is how many probes were sent since the breaker opened.
	probes int
	// until is when the next probe may go, unless closed.
	until time.Time
}

// New returns a closed breaker.
func New(o Options) *Breaker {
	setDefault(&o.Failures, 5)
	setDefault(&o.MinBackoff, 100*time.Millisecond)
	setDefault(&o.MaxBackoff, time.Second)
	setDefault(&o.ProbeTimeout, time.Second)
	if o.OnChange == nil {
		o.OnChange = func(State, State) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	b := &Breaker{options: o}
	b.phase.Store(&phase{state: Closed, number: 1})
	return b
}

func setDefault[T comparable](option *T, value T) {
	var zero T
	if *option == zero {
		*option = value
	}
}

// State returns the present state. A breaker stays Open until somebody asks for a
// call, even if it is time for a probe.
func (b *Breaker) State() State { return b.phase.Load().state }

// Allow tells whether a call may be made now. If so, the caller makes it and tells
// the Call how it went.
func (b *Breaker) Allow() (Call, bool) {
	p := b.phase.Load()
	if p.state == Closed {
		return Call{b, p.number}, true
	}
	now := b.options.Now()
	if now.Before(p.until) {
		return Call{}, false
	}
	return b.probe(now)
}

// probe lets one of those through who find that it is time for a probe.
func (b *Breaker) probe(now time.Time) (Call, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.phase.Load()
	if p.state == Closed {
		return Call{b, p.number}, true
	}
	if now.Before(p.until) {
		return Call{}, false
	}
	b.enter(phase{state: HalfOpen, probes: p.probes + 1, until: now.Add(b.options.ProbeTimeout)})
	return Call{b, p.number + 1}, true
}

// enter begins another phase. The caller holds mu.
func (b *Breaker) enter(next phase) {
	p := b.phase.Load()
	next.number = p.number + 1
	b.phase.Store(&next)
	if next.state != p.state {
		b.options.OnChange(p.state, next.state)
	}
}

// Call is leave to make one call. Exactly one of its methods should be called
// when the result is known; what is said after that, or too late to matter, is
// ignored, so that "defer call.Cancel()" is a safe way not to forget it. The zero
// Call is of no breaker.
type Call struct {
	breaker *Breaker
	phase   uint64
}

// Succeed says that the callee answered as it should.
func (c Call) Succeed() {
	if p := c.current(); p == nil || p.state == Closed && p.failures == 0 {
		return // by far the most frequent: without the lock
	}
	c.report(func(b *Breaker, p phase) {
		if p.state == HalfOpen {
			b.enter(phase{state: Closed})
			return
		}
		p.failures = 0
		b.phase.Store(&p)
	})
}

// Fail says that the callee did not answer, or not in time, or not as it should.
func (c Call) Fail() {
	c.report(func(b *Breaker, p phase) {
		p.failures++
		if p.state == Closed && p.failures < b.options.Failures {
			b.phase.Store(&p)
			return
		}
		b.enter(phase{state: Open, probes: p.probes, until: b.options.Now().Add(b.backoff(p.probes))})
	})
}

// Cancel says that the call was given up for reasons that say nothing of the
// callee: its caller went away. If it was the probe, the next call is one.
func (c Call) Cancel() {
	if p := c.current(); p == nil || p.state == Closed {
		return
	}
	c.report(func(b *Breaker, p phase) {
		b.enter(phase{state: Open, probes: p.probes - 1})
	})
}

// current is the phase that the call was let through in, if it is still on.
func (c Call) current() *phase {
	if c.breaker == nil {
		return nil
	}
	if p := c.breaker.phase.Load(); p.number == c.phase {
		return p
	}
	return nil
}

// report lets a result act, with mu held, on the phase that it belongs to.
func (c Call) report(act func(*Breaker, phase)) {
	if c.breaker == nil {
		return
	}
	c.breaker.mu.Lock()
	defer c.breaker.mu.Unlock()
	if p := c.current(); p != nil {
		act(c.breaker, *p)
	}
}

// backoff is the wait after so many probes in vain.
func (b *Breaker) backoff(probes int) time.Duration {
	wait := float64(min(b.options.MinBackoff<<min(probes, 16), b.options.MaxBackoff))
	return time.Duration(wait/2 + wait/2*b.options.Random())
}
