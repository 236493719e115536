package limiter

import (
	"cmp"
	"slices"
)

// slidingLog stores every hit until it is one window old. It is exact: no
// stretch of one window's length, wherever it begins, has more units than the
// limit. The price is memory in proportion to the limit.
type slidingLog struct{ quota }

// entry is one take of a SlidingLog.
type entry struct {
	at   int64
	cost int64
	// total is the units of all takes up to and with this one; differences of it
	// are right even where it has wrapped around.
	total uint64
}

func (l slidingLog) code() byte { return 'l' }

// live is the entries less than a window old.
func (l slidingLog) live(log []entry, now int64) []entry {
	begin, _ := slices.BinarySearchFunc(log, now-l.window+1, func(e entry, at int64) int {
		return cmp.Compare(e.at, at)
	})
	return log[begin:]
}

// freed is the units that have ended when everything up to an entry has.
func freed(live []entry, e entry) int64 {
	return live[0].cost + int64(e.total-live[0].total)
}

func (l slidingLog) load(c *counter, now int64) state {
	live := l.live(c.log, now)
	if len(live) == 0 {
		return state{now: now}
	}
	last := live[len(live)-1]
	return state{now: now, at: last.at, used: freed(live, last), rest: last.at}
}

// await finds the entry at whose end the hit fits.
func (l slidingLog) await(c *counter, _, after state, p price) int64 {
	live := l.live(c.log, after.now)
	need := after.used - (l.limit - p.whole)
	if !p.payable() || need <= 0 || len(live) == 0 {
		return after.rest
	}
	at, _ := slices.BinarySearchFunc(live, need, func(e entry, need int64) int {
		return cmp.Compare(freed(live, e), need)
	})
	return live[at].at
}

func (l slidingLog) save(c *counter, after state, p price, n int64, _ string) {
	live := l.live(c.log, after.at)
	var total uint64
	if len(live) > 0 {
		total = live[len(live)-1].total
	}
	cost := p.whole * n
	c.log = append(live, entry{at: after.at, cost: cost, total: total + uint64(cost)})
}

// giveBack takes the newest units away: units are alike, and the two calls of
// one request are a moment apart.
func (l slidingLog) giveBack(c *counter, s state, p price, n int64, _ string) (state, int64) {
	units := min(product(p.whole, n), s.used)
	for rest := units; rest > 0; {
		last := &c.log[len(c.log)-1]
		if last.cost > rest {
			last.cost -= rest
			last.total -= uint64(rest)
			break
		}
		rest -= last.cost
		c.log = c.log[:len(c.log)-1]
	}
	return l.load(c, s.now), units / p.whole
}

func (l slidingLog) room(s state, p price, n int64) int64 { return l.fit(s.used, p, n) }

func (l slidingLog) take(s state, p price, n int64) state {
	if n > 0 && !p.zero() {
		s.at = s.time()
		s.used += p.whole * n
	}
	return s
}

func (l slidingLog) within(s state, p price) price { return price{whole: min(p.whole, l.left(s.used))} }

func (l slidingLog) remaining(s state) int64 { return l.left(s.used) }

func (l slidingLog) retryAt(s state, _ price) int64 { return s.rest + l.window }

func (l slidingLog) resetAt(s state) int64 {
	if s.used == 0 {
		return s.now
	}
	return s.at + l.window
}
