package limiter

import "math"

// slidingWindow keeps the units of the present fixed window and of the one
// before, and takes the latter to have come evenly: of them, the share counts
// that the sliding window still covers. It is exact for even traffic. For any
// traffic, what passes within one window's length is below twice the limit:
// nobody gets the full limit on both sides of a border, as with a fixed window.
//
// The method is Cloudflare's, "How we built rate limiting capable of scaling to
// millions of domains" (2017), who found 0.003 % of requests decided wrongly.
type slidingWindow struct{ quota }

func (w slidingWindow) code() byte { return 'w' }

func (w slidingWindow) load(c *counter, now int64) state {
	s := c.state
	s.now = now
	start := now - now%w.window
	switch {
	case s.at < start-w.window:
		s.at, s.used, s.rest = start, 0, 0
	case s.at < start:
		s.at, s.used, s.rest = start, 0, s.used
	}
	return s
}

func (w slidingWindow) room(s state, p price, n int64) int64 { return w.fit(w.used(s), p, n) }

func (w slidingWindow) within(s state, p price) price {
	return price{whole: min(p.whole, w.left(w.used(s)))}
}

func (w slidingWindow) used(s state) int64 {
	return w.weight(s.rest, s.time()-s.at) + s.used
}

// weight is what the previous window's units count for, rounded up. The script
// does the same operations on the same doubles. Rounding does not let it exceed
// the units, and it never grows with elapsed, which retryAt relies on.
func (w slidingWindow) weight(previous, elapsed int64) int64 {
	share := float64(previous) * float64(w.window-elapsed) / float64(w.window)
	return min(int64(math.Ceil(share)), previous)
}

func (w slidingWindow) remaining(s state) int64 { return w.left(w.used(s)) }

// retryAt finds the first microsecond at which the hit fits by asking the
// arithmetic of room itself, so that no rounding comes between the two.
func (w slidingWindow) retryAt(s state, p price) int64 {
	if s.used > w.limit-p.whole {
		// Not in this window. In the next, its units are the previous ones.
		s.at, s.used, s.rest = s.at+w.window, 0, s.used
	}
	return s.at + first(w.window, func(elapsed int64) bool {
		return w.weight(s.rest, elapsed)+s.used <= w.limit-p.whole
	})
}

func (w slidingWindow) resetAt(s state) int64 {
	switch {
	case s.used > 0:
		return s.at + 2*w.window
	case s.rest > 0:
		return s.at + w.window
	default:
		return s.now
	}
}
