package limiter

// tokens are what the in-memory store remembers of calls that are to happen
// once: the prices of a reservation's hits, and of other calls that they came.
type tokens map[string]remembered

type remembered struct {
	prices []price
	ends   int64
}

func (t tokens) get(key string, now int64) ([]price, bool) {
	r, ok := t[key]
	if ok && r.ends <= now {
		delete(t, key)
		ok = false
	}
	return r.prices, ok
}

// put drops a few tokens that count no more, so that memory follows those in
// use: a map is ranged over from a random place.
func (t tokens) put(key string, prices []price, now, ttl int64) {
	looks := 4
	for other, r := range t {
		if r.ends <= now {
			delete(t, other)
		}
		if looks--; looks == 0 {
			break
		}
	}
	t[key] = remembered{prices: prices, ends: now + ttl}
}

func (t tokens) forget(key string) { delete(t, key) }
