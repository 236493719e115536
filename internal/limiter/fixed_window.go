package limiter

// fixedWindow counts units in windows that follow one another from 1970 on. It
// is the cheapest algorithm; around the border of two windows up to twice the
// limit passes within one window's length.
type fixedWindow struct{ quota }

func (f fixedWindow) arguments(group int) []any {
	return f.quota.arguments("f", group)
}

func (f fixedWindow) load(c *counter, now int64) state {
	s := c.state
	s.now = now
	if start := now - now%f.window; s.at < start {
		s.at, s.used = start, 0
	}
	return s
}

func (f fixedWindow) save(c *counter, after state) { c.state = after }

func (f fixedWindow) fits(s state) bool { return f.admits(s.used) }

func (f fixedWindow) take(s state) state {
	s.used += f.cost
	return s
}

func (f fixedWindow) remaining(s state) int64 { return f.left(s.used) }

func (f fixedWindow) retryAt(s state) int64 { return s.at + f.window }

func (f fixedWindow) resetAt(s state) int64 {
	if s.used == 0 {
		return s.now
	}
	return s.at + f.window
}
