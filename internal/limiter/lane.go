package limiter

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// ErrOverloaded means that more calls wait for the store than are let wait. The
// call was not sent.
var ErrOverloaded = errors.New("too many calls wait for the store")

const (
	// maxWaiting bounds the jobs that wait in a lane.
	maxWaiting = 1 << 16
	// maxBatch bounds the jobs of one script call, so that none keeps Redis from
	// its other clients for much longer than a millisecond.
	maxBatch = 512
	// maxUnderWay is the calls of a lane that are under way together: while
	// Redis works on one, the other is on its way or being read.
	maxUnderWay = 2
)

// lane carries jobs to one node, many in one call. A job that comes while fewer
// than maxUnderWay calls are under way is sent at once, by its own goroutine.
// Jobs that come meanwhile wait, and leave together when a call is back, in the
// order in which they came. So nothing is ever delayed to gather more, and the
// busier the node, the larger the batches.
type lane struct {
	// send carries out jobs, and sets their err.
	send func(ctx context.Context, batch []*flight)
	// late is told of a job that was answered when its caller had left.
	late func(f *flight)
	// guard refuses jobs while the node fails. It is over send.
	guard *guard

	mu       sync.Mutex
	waiting  []*flight
	underWay int
	// trains are the batches under way whose callers wait.
	trains [maxUnderWay]*train
	// alarm wakes the callers of overdue jobs; it rings at alarmAt, if that is set.
	alarm   *time.Timer
	alarmAt time.Time
}

// train is the goroutine that carries what waits in a lane, batch after batch.
type train struct{ batch []*flight }

// flight is a job on its way through a lane.
type flight struct {
	job
	deadline time.Time
	err      error
	phase    atomic.Int32
	// awake has the caller look at the phase and at the time. It can be told for
	// nothing, by the flight's former uses.
	awake chan struct{}
	alone [1]*flight
}

// The phases of a flight. The caller and the lane each do a step of their own
// from the first two; who comes second finds that the other was first.
const (
	// inQueue: not sent yet.
	inQueue int32 = iota
	// onWay: sent.
	onWay
	// arrived: it was answered, and the flight is the caller's.
	arrived
	// abandoned: the caller has left, and the flight is the lane's.
	abandoned
)

var flights = sync.Pool{New: func() any {
	f := &flight{awake: make(chan struct{}, 1)}
	f.alone[0] = f
	return f
}}

// errLate means that a call's time was over.
var errLate = fmt.Errorf("the store did not answer in time: %w", context.DeadlineExceeded)

// do carries out a job. When it says that the flight is not the caller's, the
// caller has left it, with the error as the reason.
func (l *lane) do(ctx context.Context, f *flight) (mine bool, err error) {
	if l.guard.open() {
		return true, errCircuitOpen
	}
	l.mu.Lock()
	if l.underWay < maxUnderWay && len(l.waiting) == 0 {
		l.underWay++
		l.mu.Unlock()
		return l.sendNow(ctx, f)
	}
	if len(l.waiting) >= maxWaiting {
		l.mu.Unlock()
		return true, ErrOverloaded
	}
	f.phase.Store(inQueue)
	l.waiting = append(l.waiting, f)
	l.setAlarm(f.deadline)
	l.mu.Unlock()
	return l.await(ctx, f)
}

// sendNow carries out a job by itself. A caller that can leave does not carry it
// in person, since nothing ends a call to Redis before its deadline.
func (l *lane) sendNow(ctx context.Context, f *flight) (mine bool, err error) {
	if ctx.Done() == nil {
		l.send(until{ctx, f.deadline}, f.alone[:])
		l.next()
		return true, f.err
	}
	f.phase.Store(onWay)
	go func() {
		l.send(until{context.WithoutCancel(ctx), f.deadline}, f.alone[:])
		l.answer(f)
		l.next()
	}()
	return l.await(ctx, f)
}

// until is a context with a deadline and no timer: go-redis gives the deadline to
// the connection.
type until struct {
	context.Context
	deadline time.Time
}

func (u until) Deadline() (time.Time, bool) { return u.deadline, true }

// await waits for a job's answer, the end of its time, or that of the context.
func (l *lane) await(ctx context.Context, f *flight) (mine bool, err error) {
	for {
		select {
		case <-f.awake:
		case <-ctx.Done():
		}
		if f.phase.Load() == arrived {
			return true, f.err
		}
		err := ctx.Err()
		if err == nil && !time.Now().Before(f.deadline) {
			err = errLate
		}
		if err != nil && (f.phase.CompareAndSwap(inQueue, abandoned) || f.phase.CompareAndSwap(onWay, abandoned)) {
			return false, err
		}
	}
}

// next sends what waits, if anything does, in place of a call that has ended.
func (l *lane) next() {
	l.mu.Lock()
	if len(l.waiting) == 0 {
		l.underWay--
		l.mu.Unlock()
		return
	}
	t := &train{}
	for i := range l.trains {
		if l.trains[i] == nil {
			l.trains[i] = t
			break
		}
	}
	l.mu.Unlock()
	go l.run(t)
}

// run carries what waits until nothing does. It lets the callers that it woke
// come again first: on few cores, batches form because of this.
func (l *lane) run(t *train) {
	for {
		runtime.Gosched()
		if !l.board(t) {
			return
		}
		last := t.batch[0].deadline
		for _, f := range t.batch {
			if f.deadline.After(last) {
				last = f.deadline
			}
		}
		l.send(until{context.Background(), last}, t.batch)
		for _, f := range t.batch {
			l.answer(f)
		}
	}
}

// board fills a train from what waits; without anything, the train has ended.
func (l *lane) board(t *train) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(t.batch)
	t.batch = t.batch[:0]
	n := 0
	for n < len(l.waiting) && len(t.batch) < maxBatch {
		f := l.waiting[n]
		n++
		if f.phase.CompareAndSwap(inQueue, onWay) {
			t.batch = append(t.batch, f)
		} else {
			flights.Put(f)
		}
	}
	rest := copy(l.waiting, l.waiting[n:])
	clear(l.waiting[rest:])
	l.waiting = l.waiting[:rest]
	if len(t.batch) > 0 {
		return true
	}
	for i := range l.trains {
		if l.trains[i] == t {
			l.trains[i] = nil
		}
	}
	l.underWay--
	return false
}

// answer hands a flight to its caller, if that is still there.
func (l *lane) answer(f *flight) {
	if f.phase.CompareAndSwap(onWay, arrived) {
		f.wake()
		return
	}
	l.late(f)
}

func (f *flight) wake() {
	select {
	case f.awake <- struct{}{}:
	default:
	}
}

// setAlarm sees to it that callers are woken at a deadline. The lane is locked.
func (l *lane) setAlarm(deadline time.Time) {
	switch {
	case l.alarmAt.IsZero():
	case deadline.Before(l.alarmAt):
	default:
		return
	}
	l.alarmAt = deadline
	if l.alarm == nil {
		l.alarm = time.AfterFunc(time.Until(deadline), l.ring)
	} else {
		l.alarm.Reset(time.Until(deadline))
	}
}

// ring wakes the callers of overdue jobs.
func (l *lane) ring() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alarmAt = time.Time{}
	now := time.Now()
	look := func(f *flight) {
		if now.Before(f.deadline) {
			l.setAlarm(f.deadline)
		} else {
			f.wake()
		}
	}
	for _, f := range l.waiting {
		look(f)
	}
	for _, t := range l.trains {
		if t != nil {
			for _, f := range t.batch {
				look(f)
			}
		}
	}
}
