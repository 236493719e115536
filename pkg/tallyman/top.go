package tallyman

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tallyman-dev/tallyman/internal/match"
)

// Top is what was decided of which keys since they are counted.
type Top struct {
	// Since is for how long keys have been counted: 0 in the first answer.
	Since time.Duration
	// Limits are all in force, by policy and in the order of their specs. Those of a
	// policy that has changed count anew.
	Limits []TopLimit
}

// TopLimit is what became of the requests that met one limit. Refused are those that
// the limit itself refused, or would have, and Admitted those that were admitted; a
// request that only others refused is in neither.
type TopLimit struct {
	Policy, Limit     string
	Shadow            bool
	Admitted, Refused int64
	// Keys are the 100 with most requests, most first. Each key with more than a
	// 256th of the limit's requests is found, and at most so many of its requests are
	// not counted. A request that an override denies, or that lacks a key, is among
	// those of the limit only.
	Keys []TopKey
	// Others says that there were more keys than are counted.
	Others bool
}

// TopKey is one key of a limit.
type TopKey struct {
	// Text has addresses, methods and paths as they are, and hashes of other values.
	// Values has all of them as they are, at most 256 bytes of them: they may be
	// secret.
	Text, Values      string
	Admitted, Refused int64
}

// maxValues bounds what is kept of a key's values, in bytes.
const maxValues = 256

// Top tells which keys have most requests. They are counted from the first call on,
// and until there has been none for as long as the caller's patience. Otherwise
// nothing is counted, and it costs decisions nothing.
func (l *Limiter) Top(patience time.Duration) Top {
	c := l.tops.ask(patience)
	top := Top{Since: time.Since(c.began)}
	inForce := map[*rule]bool{}
	for _, p := range l.current.Load().policies {
		for i := range p.rules {
			r := &p.rules[i]
			inForce[r] = true
			top.Limits = append(top.Limits, c.limit(r).told(r))
		}
	}
	c.limits.Range(func(r, _ any) bool {
		if !inForce[r.(*rule)] {
			c.limits.Delete(r)
		}
		return true
	})
	return top
}

// tops counts keys while somebody asks for them. It is safe for concurrent use.
type tops struct {
	// counting is nil while nobody asks.
	counting atomic.Pointer[census]

	mu     sync.Mutex
	until  time.Time
	ending *time.Timer
}

// ask returns what is counted, and has counting go on for a while.
func (t *tops) ask(patience time.Duration) *census {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	c := t.counting.Load()
	if c == nil {
		c = &census{began: now}
		t.counting.Store(c)
	}
	t.until = now.Add(patience)
	if t.ending == nil {
		t.ending = time.AfterFunc(patience, t.end)
	} else {
		t.ending.Reset(patience)
	}
	return c
}

// end ends counting, unless somebody has asked meanwhile.
func (t *tops) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !time.Now().Before(t.until) {
		t.counting.Store(nil)
	}
}

func (t *tops) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counting.Store(nil)
	if t.ending != nil {
		t.ending.Stop()
	}
}

// count counts a request that was decided.
func (t *tops) count(m *meeting, allowed bool) {
	if c := t.counting.Load(); c != nil {
		c.count(m, allowed)
	}
}

// census counts keys of limits. It is safe for concurrent use.
type census struct {
	began  time.Time
	limits sync.Map // *rule → *limitCensus
}

// limitCensus counts the keys of one limit.
type limitCensus struct {
	mu                sync.Mutex
	admitted, refused int64
	keys              hottest
}

func (c *census) limit(r *rule) *limitCensus {
	if l, known := c.limits.Load(r); known {
		return l.(*limitCensus)
	}
	l, _ := c.limits.LoadOrStore(r, new(limitCensus))
	return l.(*limitCensus)
}

func (c *census) count(m *meeting, allowed bool) {
	hit := 0 // of m.places, which are in the order of m.limits
	for i, r := range m.rules {
		key := ""
		if hit < len(m.places) && m.places[hit] == i {
			key = m.call.Hits[hit].Key
			hit++
		}
		if refused := !m.limits[i].Allowed; allowed || refused {
			c.limit(r).count(key, refused, func() string { return match.CutText(r.matcher.KeyText(&m.request, ""), maxValues) })
		}
	}
}

// count counts a request under a key, unless that is empty.
func (l *limitCensus) count(key string, refused bool, values func() string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if refused {
		l.refused++
	} else {
		l.admitted++
	}
	if key != "" {
		l.keys.add(key, refused, values)
	}
}

func (l *limitCensus) told(r *rule) TopLimit {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := TopLimit{
		Policy: r.template.Policy, Limit: r.template.Limit, Shadow: r.template.Shadow,
		Admitted: l.admitted, Refused: l.refused, Others: l.keys.others,
	}
	for _, k := range l.keys.top() {
		t.Keys = append(t.Keys, TopKey{Text: r.publicText(k.key), Values: k.values, Admitted: k.admitted, Refused: k.refused})
	}
	return t
}

// publicText is the text of a counter's key that may be told to everybody.
func (r *rule) publicText(key string) string {
	tag := strings.TrimPrefix(key, r.keyBase)
	return match.PublicText(tag[1 : len(tag)-1])
}
