package limiter

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
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
	// minShare is what a call may take even if it is more than half: a trip costs as
	// much as deciding some tens of jobs.
	minShare = 16
	// maxTurns bounds how often all others are let run before a batch leaves.
	maxTurns = 3
)

// lane carries jobs to one node, many in one call. A job that comes while no call
// is under way is sent at once, by its own goroutine if its caller cannot leave. Jobs
// that come meanwhile leave together, in the order in which they came: with another
// call as soon as whoever else can run has had a turn, and, while maxUnderWay are
// under way, when one of these is back. So there is no timer, and the busier the node,
// the larger the batches.
//
// Calls share the jobs evenly, so that Redis works on one while the callers of the
// other one come again: were all jobs in one call, Redis and callers would wait for
// each other in turn.
type lane struct {
	// send carries out jobs, and sets their err.
	send func(ctx context.Context, batch []*flight)
	// late is handed a job whose caller has left: when it is answered or, with an
	// error, when it was not sent. It returns at once, and leaves the lane alone.
	late func(f *flight)
	// guard refuses jobs while the node fails. It is over send.
	guard *guard

	mu       sync.Mutex
	waiting  []*flight
	underWay int // calls
	flying   int // jobs in them
	// proven says that the last call was answered. After another one, and at first,
	// send may have to connect, which does not end at a deadline.
	proven bool
	// trains are the calls under way whose callers wait, and can leave.
	trains [maxUnderWay]*train
	// alarm wakes the callers of overdue jobs; it rings at alarmAt, if that is set.
	alarm   *time.Timer
	alarmAt time.Time
}

// train is a goroutine that carries a job or, batch after batch, what waits in a
// lane.
type train struct {
	// batch is under way. It is empty before its callers are answered: they use
	// their flights again.
	batch []*flight
}

// flight is a job on its way through a lane.
type flight struct {
	job
	deadline time.Time
	err      error
	phase    atomic.Int32
	// awake has the caller look at the phase and at the time. It can be told for
	// nothing, by the flight's former uses.
	awake chan struct{}
	// own is for a flight that does not wait for others.
	own   train
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

// errUnsent is of a job whose caller left it before it was sent.
var errUnsent = errors.New("not sent")

// errLate means that a call's time was over.
var errLate = fmt.Errorf("the store did not answer in time: %w", context.DeadlineExceeded)

// do carries out a job. When it says that the flight is not the caller's, the
// caller has left it, with the error as the reason.
func (l *lane) do(ctx context.Context, f *flight) (mine bool, err error) {
	if l.guard.open() {
		return true, errCircuitOpen
	}
	l.mu.Lock()
	if l.underWay == 0 {
		l.underWay++
		l.flying++
		if ctx.Done() == nil && l.proven {
			l.mu.Unlock()
			return l.sendMyself(ctx, f)
		}
		f.phase.Store(onWay)
		f.own.batch = f.alone[:]
		l.depart(&f.own)
		l.setAlarm(f.deadline)
		l.mu.Unlock()
		go l.sendAlone(ctx, f)
		return l.await(ctx, f)
	}
	if len(l.waiting) >= maxWaiting {
		l.mu.Unlock()
		return true, ErrOverloaded
	}
	f.phase.Store(inQueue)
	l.waiting = append(l.waiting, f)
	l.setAlarm(f.deadline)
	if l.underWay < maxUnderWay {
		l.underWay++
		l.launch()
	}
	l.mu.Unlock()
	return l.await(ctx, f)
}

// sendMyself carries out a job of a caller that cannot leave, by its own
// goroutine. It takes as long as send does.
func (l *lane) sendMyself(ctx context.Context, f *flight) (mine bool, err error) {
	l.send(until{ctx, f.deadline}, f.alone[:])
	l.next(f.err)
	return true, f.err
}

// sendAlone carries out a job whose caller waits. Nothing that the caller does
// ends a call to Redis.
func (l *lane) sendAlone(ctx context.Context, f *flight) {
	l.send(until{context.WithoutCancel(ctx), f.deadline}, f.alone[:])
	l.mu.Lock()
	l.remove(&f.own)
	l.mu.Unlock()
	err := f.err
	l.answer(f)
	l.next(err)
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
		f.sleep(ctx.Done())
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

// next sends what waits, if anything does, in place of a call of one job that has
// ended.
func (l *lane) next(err error) {
	l.mu.Lock()
	l.proven = err == nil
	l.flying--
	if len(l.waiting) == 0 {
		l.underWay--
		l.mu.Unlock()
		return
	}
	l.launch()
	l.mu.Unlock()
}

// launch has a train carry what waits. The lane is locked.
func (l *lane) launch() {
	t := &train{}
	l.depart(t)
	go l.run(t)
}

// depart notes a train, of which there are at most maxUnderWay. The lane is locked.
func (l *lane) depart(t *train) {
	l.trains[slices.Index(l.trains[:], nil)] = t
}

// remove forgets a train. The lane is locked.
func (l *lane) remove(t *train) {
	l.trains[slices.Index(l.trains[:], t)] = nil
}

// run carries what waits until nothing does. Before each batch it lets others run, those
// about to ask and the callers that it woke, for as long as that brings more and less
// than a share waits: on few cores, batches form because of this. Where much else is to
// be run, each turn takes its time, and there are few.
func (l *lane) run(t *train) {
	var batch []*flight
	for {
		for turn, before := 0, 0; turn < maxTurns; turn++ {
			runtime.Gosched()
			n, enough := l.queued()
			if enough || n <= before {
				break
			}
			before = n
		}
		batch = l.board(t, batch[:0])
		if len(batch) == 0 {
			return
		}
		last := batch[0].deadline
		for _, f := range batch {
			if f.deadline.After(last) {
				last = f.deadline
			}
		}
		l.send(until{context.Background(), last}, batch)
		l.mu.Lock()
		l.proven = batch[0].err == nil
		t.batch = nil
		l.flying -= len(batch)
		l.mu.Unlock()
		for _, f := range batch {
			l.answer(f)
		}
		clear(batch)
	}
}

// queued is how many jobs wait, and whether these are a call's share.
func (l *lane) queued() (n int, enough bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting), len(l.waiting) >= l.share()
}

// share is how many jobs the next call takes at the most. The lane is locked.
func (l *lane) share() int {
	all := len(l.waiting) + l.flying
	return min(maxBatch, max(minShare, (all+maxUnderWay-1)/maxUnderWay))
}

// board fills a train with what waits, at most its share; without anything, the train
// has ended. What is left waits for the other calls: while anything waits, as many
// are under way as may be.
func (l *lane) board(t *train, batch []*flight) []*flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, most := 0, l.share()
	for n < len(l.waiting) && len(batch) < most {
		f := l.waiting[n]
		n++
		if f.phase.CompareAndSwap(inQueue, onWay) {
			batch = append(batch, f)
		} else {
			f.err = errUnsent
			l.late(f)
		}
	}
	rest := copy(l.waiting, l.waiting[n:])
	clear(l.waiting[rest:])
	l.waiting = l.waiting[:rest]
	t.batch = batch
	l.flying += len(batch)
	if len(batch) == 0 {
		l.remove(t)
		l.underWay--
	}
	return batch
}

// answer hands a flight to its caller, if that is still there.
func (l *lane) answer(f *flight) {
	if f.phase.CompareAndSwap(onWay, arrived) {
		f.wake()
		return
	}
	l.late(f)
}

// sleep waits until the caller is to look at its flight, or done is closed.
func (f *flight) sleep(done <-chan struct{}) {
	if done == nil { // as the library has it, and the quicker
		<-f.awake
		return
	}
	select {
	case <-f.awake:
	case <-done:
	}
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
