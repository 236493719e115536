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
	tokens   tokens
	// linger keeps counters longer than they are of use, in µs. Only where the
	// clock goes back by far, as in a simulation, can one tell the difference.
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
	// slots are Concurrency's, with the time at which each ends by itself.
	slots map[string]int64
	// resetAt is when the counter is of no use any more, in µs.
	resetAt int64
}

// blank says whether the counter has never counted, or is not believed.
func (c *counter) blank() bool { return c.resetAt == 0 }

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
		c.clear()
	}
}

// clear makes the counter one that has never counted. It stays where it is stored.
func (c *counter) clear() { c.state, c.log, c.slots, c.resetAt = state{}, nil, nil, 0 }

// NewMemory returns an empty store that reads the time from now, under its lock.
func NewMemory(now func() time.Time) *Memory {
	return &Memory{now: now, counters: map[string]*counter{}, tokens: tokens{}}
}

// NewSimulatedMemory is a Memory for simulated time, which may go back by any
// step: it keeps counters for good, as Redis does while time is simulated, since
// one that is of no use any more is of use again when the clock goes back.
func NewSimulatedMemory(now func() time.Time) *Memory {
	m := NewMemory(now)
	m.linger = 1 << 52 // 142 years
	return m
}

// Do implements Store. It fails only with ErrInvalid.
func (m *Memory) Do(_ context.Context, c *Call) error {
	j := jobs.Get().(*job)
	defer jobs.Put(j)
	if err := j.prepare(c); err != nil {
		return err
	}
	if len(j.hits) == 0 {
		j.conclude(c)
		return nil
	}
	m.mu.Lock()
	now := m.now().UnixMicro()
	m.sweep(now, 2*len(j.hits))
	for i := range j.hits {
		d := &j.hits[i]
		c := m.counter(d.key)
		c.distrust(now, d.rule.lasts(now))
		d.state = d.rule.load(c, now)
	}
	m.carryOut(j, now)
	m.mu.Unlock()
	j.conclude(c)
	return nil
}

var jobs = sync.Pool{New: func() any { return new(job) }}

func (m *Memory) carryOut(j *job, now int64) {
	switch j.verb {
	case verbTake:
		m.decide(j, true)
	case verbPeek:
		m.decide(j, false)
	case verbReserve:
		m.reserve(j, now)
	case verbCharge:
		m.charge(j, now)
	case verbRefund:
		m.refund(j, now)
	case verbSettle:
		m.settle(j, now)
	case verbRenew:
		m.renew(j, now)
	case verbReset:
		m.reset(j, now)
	}
}

func (m *Memory) decide(j *job, taking bool) {
	j.granted[enforced] = j.fitting(enforced, j.count)
	j.granted[shadow] = j.fitting(shadow, j.granted[enforced])
	for i := range j.hits {
		d := &j.hits[i]
		c, after := m.counter(d.key), d.state
		if n := j.granted[d.group]; taking && n > 0 && !d.price.zero() {
			after = d.rule.take(d.state, d.price, n)
			m.put(c, d, after, d.price, n, j.token)
		}
		d.state.rest = d.rule.await(c, d.state, after, d.price)
	}
}

// fitting is how many of n requests fit all hits of a group.
func (j *job) fitting(group byte, n int64) int64 {
	for i := range j.hits {
		if d := &j.hits[i]; d.group == group && n > 0 {
			n = d.rule.room(d.state, d.price, n)
		}
	}
	return n
}

func (m *Memory) reserve(j *job, now int64) {
	key := j.tokenKey()
	_, again := m.tokens.get(key, now)
	m.decide(j, !again)
	if j.granted[enforced] > 0 && !again {
		estimates := make([]estimate, len(j.hits))
		for i := range j.hits {
			d := &j.hits[i]
			estimates[i] = estimate{d.price, d.rule.rate()}
			if j.granted[d.group] == 0 {
				estimates[i].whole = unpayable
			}
		}
		m.tokens.put(key, estimates, now, m.lasting(j.ttl))
	}
}

func (m *Memory) charge(j *job, now int64) {
	if !m.once(j, now) {
		return
	}
	j.granted[enforced] = 1
	for i := range j.hits {
		d := &j.hits[i]
		m.spend(d, d.rule.within(d.state, d.price), j.token)
	}
}

// spend takes a price that fits.
func (m *Memory) spend(d *decision, p price, token string) state {
	after := d.state
	if !p.zero() {
		after = d.rule.take(d.state, p, 1)
		m.put(m.counter(d.key), d, after, p, 1, token)
	}
	return after
}

func (m *Memory) refund(j *job, now int64) {
	if !m.once(j, now) {
		return
	}
	done := j.count
	for i := range j.hits {
		if d := &j.hits[i]; !d.price.zero() {
			done = min(done, m.giveBack(d, d.price, j.count, j.token))
		}
	}
	j.granted[enforced] = done
}

func (m *Memory) giveBack(d *decision, p price, n int64, token string) int64 {
	c := m.counters[d.key]
	if c == nil || c.blank() {
		return 0
	}
	after, back := d.rule.giveBack(c, d.state, p, n, token)
	d.state = after
	return back
}

func (m *Memory) settle(j *job, now int64) {
	estimates, known := m.tokens.get(j.tokenKey(), now)
	if !known || len(estimates) != len(j.hits) {
		return
	}
	m.tokens.forget(j.tokenKey())
	j.granted[enforced] = 1
	for i := range j.hits {
		d := &j.hits[i]
		if d.rule.holdsSlots() || !estimates[i].payable() {
			continue
		}
		estimate := d.rule.revalue(estimates[i])
		if more := d.rule.minus(d.price, estimate); more.whole >= 0 {
			d.state = m.spend(d, d.rule.within(d.state, more), j.token)
		} else {
			m.giveBack(d, d.rule.minus(estimate, d.price), 1, j.token)
		}
	}
}

func (m *Memory) renew(j *job, now int64) {
	j.granted[enforced] = 1
	for i := range j.hits {
		d := &j.hits[i]
		slots, ok := d.rule.algorithm.(concurrency)
		if !ok {
			continue
		}
		c := m.counter(d.key)
		if !slots.renew(c, now, d.price, j.token) {
			j.granted[enforced] = 0
		}
		if !c.blank() {
			c.resetAt = max(c.resetAt, now+slots.window+m.linger)
		}
	}
}

func (m *Memory) reset(j *job, now int64) {
	j.granted[enforced] = 1
	for i := range j.hits {
		d := &j.hits[i]
		c := m.counter(d.key)
		c.clear()
		d.state = d.rule.load(c, now)
	}
}

// tokenKey is where a job's token is remembered: beside its first counter, so
// that a Redis Cluster has both in one slot.
func (j *job) tokenKey() string { return j.hits[0].key + ":" + j.token }

// once says whether a job is to be carried out: it has no token, or a new one.
func (m *Memory) once(j *job, now int64) bool {
	if !j.remembered() {
		return true
	}
	if _, again := m.tokens.get(j.tokenKey(), now); again {
		return false
	}
	m.tokens.put(j.tokenKey(), nil, now, m.lasting(j.ttl))
	return true
}

func (m *Memory) lasting(ttl time.Duration) int64 { return ttl.Microseconds() + m.linger }

// counter returns a key's counter, or an empty one that is not stored.
func (m *Memory) counter(key string) *counter {
	if c := m.counters[key]; c != nil {
		return c
	}
	return &counter{key: key}
}

// put writes a counter after n times a price were taken.
func (m *Memory) put(c *counter, d *decision, after state, p price, n int64, token string) {
	d.rule.save(c, after, p, n, token)
	c.resetAt = d.rule.resetAt(after) + m.linger
	if _, stored := m.counters[c.key]; !stored {
		m.counters[c.key] = c
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
