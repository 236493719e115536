package limiter

import (
	"cmp"
	"slices"
)

// slidingLog stores every hit until it is one window old. It is exact: no
// stretch of one window's length, wherever it begins, has more units than the
// limit. The price is memory in proportion to the limit.
type slidingLog struct{ quota }

// entry is one hit of a SlidingLog.
type entry struct {
	at   int64
	cost int64
	// total is the units of all hits up to and with this one; differences of it
	// are right even where it has wrapped around.
	total uint64
}

// live is the entries less than a window old.
func (l slidingLog) live(log []entry, now int64) []entry {
	begin, _ := slices.BinarySearchFunc(log, now-l.window+1, func(e entry, at int64) int {
		return cmp.Compare(e.at, at)
	})
	return log[begin:]
}

func (l slidingLog) arguments(group int) []any {
	return l.quota.arguments("l", group)
}

func (l slidingLog) load(c *counter, now int64) state {
	live := l.live(c.log, now)
	if len(live) == 0 {
		return state{now: now}
	}
	freed := func(e entry) int64 { return live[0].cost + int64(e.total-live[0].total) }
	last := live[len(live)-1]
	s := state{now: now, at: last.at, used: freed(last), rest: last.at}
	if need := s.used - (l.limit - l.cost); l.payable() && need > 0 {
		awaited, _ := slices.BinarySearchFunc(live, need, func(e entry, need int64) int {
			return cmp.Compare(freed(e), need)
		})
		s.rest = live[awaited].at
	}
	return s
}

func (l slidingLog) save(c *counter, after state) {
	live := l.live(c.log, after.at)
	var total uint64
	if len(live) > 0 {
		total = live[len(live)-1].total
	}
	c.log = append(live, entry{at: after.at, cost: l.cost, total: total + uint64(l.cost)})
}

func (l slidingLog) fits(s state) bool { return l.admits(s.used) }

func (l slidingLog) take(s state) state {
	if l.cost > 0 {
		s.at = s.time()
		s.used += l.cost
	}
	return s
}

func (l slidingLog) remaining(s state) int64 { return l.left(s.used) }

func (l slidingLog) retryAt(s state) int64 { return s.rest + l.window }

func (l slidingLog) resetAt(s state) int64 {
	if s.used == 0 {
		return s.now
	}
	return s.at + l.window
}
