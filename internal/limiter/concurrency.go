package limiter

import (
	"strconv"
	"time"
)

// concurrency counts the requests that are under way. Each holds a slot, which
// it renews and gives back; the slot of a holder that crashed ends by itself
// after a window.
type concurrency struct{ quota }

// freeSlotHint is the RetryAfter of a refused request: when a slot comes free
// depends on the requests that hold them.
const freeSlotHint = int64(time.Second / time.Microsecond)

func (n concurrency) code() byte { return 'n' }

// together is 1: each request has slots of its own.
func (n concurrency) together() int64 { return 1 }

func (n concurrency) load(c *counter, now int64) state {
	var used int64
	for _, ends := range c.slots {
		if ends > now && ends <= n.latest(now) {
			used++
		}
	}
	return state{now: now, at: now, used: used}
}

// latest is when a slot ends at the latest. One that ends later was taken before
// the clock went back, and counts again when it has been renewed.
func (n concurrency) latest(now int64) int64 { return now + n.window + max(n.window, minute) }

func slotName(token string, i int64) string { return token + ":" + strconv.FormatInt(i, 10) }

func (n concurrency) save(c *counter, after state, p price, _ int64, token string) {
	for slot, ends := range c.slots {
		if ends <= after.now {
			delete(c.slots, slot)
		}
	}
	if c.slots == nil {
		c.slots = map[string]int64{}
	}
	for i := int64(1); i <= p.whole; i++ {
		c.slots[slotName(token, i)] = after.now + n.window
	}
}

func (n concurrency) giveBack(c *counter, s state, p price, _ int64, token string) (state, int64) {
	var back int64
	for i := int64(1); i <= p.whole; i++ {
		slot := slotName(token, i)
		if _, held := c.slots[slot]; held {
			delete(c.slots, slot)
			back++
		}
	}
	return n.load(c, s.now), back / p.whole
}

// renew has the slots of a token last another window; it says whether all of
// them were still there.
func (n concurrency) renew(c *counter, now int64, p price, token string) bool {
	all := true
	for i := int64(1); i <= p.whole; i++ {
		slot := slotName(token, i)
		if c.slots[slot] > now {
			c.slots[slot] = now + n.window
		} else {
			all = false
		}
	}
	return all
}

func (n concurrency) room(s state, p price, count int64) int64 { return n.fit(s.used, p, count) }

func (n concurrency) within(s state, p price) price {
	return price{whole: min(p.whole, n.left(s.used))}
}

func (n concurrency) remaining(s state) int64 { return n.left(s.used) }

func (n concurrency) retryAt(s state, _ price) int64 { return s.now + freeSlotHint }

func (n concurrency) resetAt(s state) int64 {
	if s.used == 0 {
		return s.now
	}
	return s.now + n.window
}
