package limiter

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// Memory counts within one process. It is the reference that Redis's script is
// tested against, and the store of a single process without Redis.
//
// It is safe for concurrent use: one lock makes each call one step, as Redis
// does. A counter is dropped when it is back at its full limit, a few with each
// call, so that memory follows the counters in use and no call is slow.
type Memory struct {
	now func() time.Time

	mu       sync.Mutex
	counters map[string]*counter
	expiries expiries
	// linger keeps counters longer than they are of use. Only tests, where the
	// clock goes back, can tell the difference.
	linger int64
}

// counter is one key's counter; the zero value has never counted.
type counter struct {
	key   string
	state state
	// requests is the rate at which a TokenBucket's state was written.
	requests int64
	// log is a SlidingLog's entries, the oldest first.
	log []entry
	// resetAt is when the counter is of no use any more, in µs.
	resetAt int64
}

// minute is how far ahead of the clock a counter's state may be at least, in µs.
const minute = int64(time.Minute / time.Microsecond)

// distrust empties a counter whose time no step of the clock explains, see the
// package comment.
func (c *counter) distrust(now, window int64) {
	at := c.state.at
	if len(c.log) > 0 {
		at = c.log[len(c.log)-1].at
	}
	if at > now+max(window, minute) {
		c.state, c.log = state{}, nil
	}
}

// NewMemory returns an empty store that reads the time from now, under its lock.
func NewMemory(now func() time.Time) *Memory {
	return &Memory{now: now, counters: map[string]*counter{}}
}

// Take implements Store. It fails only with ErrInvalidHit.
func (m *Memory) Take(_ context.Context, hits []Hit) ([]Result, error) {
	return m.decide(hits, true)
}

// Peek implements Store. It fails only with ErrInvalidHit.
func (m *Memory) Peek(_ context.Context, hits []Hit) ([]Result, error) {
	return m.decide(hits, false)
}

func (m *Memory) decide(hits []Hit, take bool) ([]Result, error) {
	decisions, err := prepare(hits)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now().UnixMicro()
	m.sweep(now, 2*len(hits))
	for i := range hits {
		d := &decisions[i]
		c := m.counter(hits[i].Key)
		c.distrust(now, hits[i].Limit.Window.Microseconds())
		d.state = d.load(c, now)
		d.fits = d.algorithm.fits(d.state)
	}
	fits := fitting(hits, decisions)
	for i := range hits {
		if take && fits[hits[i].group()] && hits[i].Cost > 0 {
			m.save(hits[i].Key, &decisions[i])
		}
	}
	return conclude(hits, decisions, take), nil
}

// counter returns a key's counter, or an empty one that is not stored.
func (m *Memory) counter(key string) *counter {
	if c := m.counters[key]; c != nil {
		return c
	}
	return &counter{key: key}
}

func (m *Memory) save(key string, d *decision) {
	c := m.counter(key)
	after := d.take(d.state)
	d.save(c, after)
	c.resetAt = d.resetAt(after) + m.linger
	if _, stored := m.counters[key]; !stored {
		m.counters[key] = c
		heap.Push(&m.expiries, expiry{c.resetAt, c})
	}
}

// sweep drops at most n counters that are of no use any more. Each call can
// store half as many, so that the useless ones become fewer.
func (m *Memory) sweep(now int64, n int) {
	for range n {
		if len(m.expiries) == 0 || m.expiries[0].at > now {
			return
		}
		next := &m.expiries[0]
		if next.counter.resetAt > now { // used again since it was put here
			next.at = next.counter.resetAt
			heap.Fix(&m.expiries, 0)
			continue
		}
		delete(m.counters, next.counter.key)
		heap.Pop(&m.expiries)
	}
}

// expiry is a time at which a counter is to be looked at again.
type expiry struct {
	at      int64
	counter *counter
}

// expiries is a heap with the earliest first, one entry for each counter.
type expiries []expiry

func (e expiries) Len() int           { return len(e) }
func (e expiries) Less(i, j int) bool { return e[i].at < e[j].at }
func (e expiries) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *expiries) Push(x any)        { *e = append(*e, x.(expiry)) }

func (e *expiries) Pop() any {
	old := *e
	last := old[len(old)-1]
	old[len(old)-1] = expiry{}
	*e = old[:len(old)-1]
	return last
}
