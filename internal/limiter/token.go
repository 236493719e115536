package limiter

import (
	"crypto/rand"
	"strconv"
	"sync/atomic"
)

// tokenSource makes tokens that no other source in any process makes. It is safe
// for concurrent use.
type tokenSource struct {
	name string
	made atomic.Uint64
}

func newTokenSource() *tokenSource {
	return &tokenSource{name: rand.Text()[:13] + "-"} // 65 random bits
}

func (s *tokenSource) next() string { return s.name + strconv.FormatUint(s.made.Add(1), 36) }

// tokens are what the in-memory store remembers of calls that are to happen
// once: the estimates of a reservation's hits, and of other calls that they came.
type tokens map[string]remembered

type remembered struct {
	estimates []estimate
	ends      int64
}

// estimate is the price of a reserved hit, at the rate of that time. That of a
// shadow that was not taken is unpayable.
type estimate struct {
	price
	rate int64
}

func (t tokens) get(key string, now int64) ([]estimate, bool) {
	r, ok := t[key]
	if ok && r.ends <= now {
		delete(t, key)
		ok = false
	}
	return r.estimates, ok
}

// put drops a few tokens that count no more, so that memory follows those in
// use: a map is ranged over from a random place.
func (t tokens) put(key string, estimates []estimate, now, ttl int64) {
	looks := 4
	for other, r := range t {
		if r.ends <= now {
			delete(t, other)
		}
		if looks--; looks == 0 {
			break
		}
	}
	t[key] = remembered{estimates: estimates, ends: now + ttl}
}

func (t tokens) forget(key string) { delete(t, key) }
