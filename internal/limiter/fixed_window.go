package limiter

// fixedWindow counts units in windows that follow one another. It is the
// cheapest algorithm; around the border of two windows up to twice the limit
// passes within one window's length.
type fixedWindow struct {
	quota
	firstRequest bool
	calendar     Calendar
}

func newFixedWindow(l Limit, q quota) fixedWindow {
	return fixedWindow{quota: q, firstRequest: l.FirstRequest, calendar: l.Calendar}
}

func (f fixedWindow) code() byte {
	switch {
	case f.calendar != nil:
		return 'c'
	case f.firstRequest:
		return 'a'
	default:
		return 'f'
	}
}

func (f fixedWindow) appendTo(b []byte, clock int64) []byte {
	b = f.quota.appendTo(b, clock)
	if f.calendar != nil {
		for _, border := range f.calendar.Around(clock) {
			b = appendInteger(b, max(0, border))
		}
	}
	return b
}

// begins is where the window of a time begins, when the last one that was
// counted began at start, if ever.
func (f fixedWindow) begins(now, start int64) int64 {
	switch {
	case f.calendar != nil:
		return f.calendar.Around(now)[1]
	case !f.firstRequest:
		return now - now%f.window
	case start+f.window > now:
		return start
	default:
		return now
	}
}

func (f fixedWindow) ends(s state) int64 {
	if f.calendar != nil {
		return f.calendar.Around(s.at)[2]
	}
	return s.at + f.window
}

func (f fixedWindow) load(c *counter, now int64) state {
	s := c.state
	s.now = now
	begins := f.begins(now, s.at)
	if f.firstRequest && c.blank() {
		begins = now
	}
	if s.at < begins {
		s.at, s.used = begins, 0
	}
	return s
}

func (f fixedWindow) room(s state, p price, n int64) int64 { return f.fit(s.used, p, n) }

func (f fixedWindow) within(s state, p price) price {
	return price{whole: min(p.whole, f.left(s.used))}
}

func (f fixedWindow) remaining(s state) int64 { return f.left(s.used) }

func (f fixedWindow) retryAt(s state, _ price) int64 { return f.ends(s) }

func (f fixedWindow) resetAt(s state) int64 {
	if s.used == 0 {
		return s.now
	}
	return f.ends(s)
}
