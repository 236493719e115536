package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// observation is one decision as its caller saw it. Times are since the start
// of the trace. When it was decided is not known, but between from and to.
type observation struct {
	key               string
	from, to          time.Duration
	allowed, degraded bool
}

// span is a stretch of time.
type span struct{ from, to time.Duration }

// promise is what a limit of so many requests in any window says about the
// decisions that are not degraded, whatever fails. Each key has its own.
type promise struct {
	requests int
	window   time.Duration
	// late is how long after its decision a degraded request may still be counted.
	late time.Duration
	// losses are when counts may have been lost, in order. Within one, two
	// servers may count, the old and the new one, each by itself.
	losses []span
}

// broken lists where a trace breaks the promise. It lists nothing that could
// have another explanation.
func (p promise) broken(trace []observation) []string {
	var all []string
	for key, observations := range byKey(trace) {
		for _, epoch := range p.epochs(observations) {
			all = append(all, p.exceeded(key, epoch)...)
		}
		all = append(all, p.refusedEarly(key, observations)...)
	}
	slices.Sort(all)
	return all
}

func byKey(trace []observation) map[string][]observation {
	keys := map[string][]observation{}
	for _, o := range trace {
		keys[o.key] = append(keys[o.key], o)
	}
	for _, observations := range keys {
		slices.SortFunc(observations, func(a, b observation) int { return cmp.Compare(a.from, b.from) })
	}
	return keys
}

// epoch is the admissions that one count, or two within a loss, stand for.
type epoch struct {
	requests   int
	admissions []observation
}

// epochs are those before, within, between and after the losses.
func (p promise) epochs(observations []observation) []epoch {
	epochs := make([]epoch, 2*len(p.losses)+1)
	for i := range epochs {
		epochs[i].requests = p.requests * (1 + i%2)
	}
	for _, o := range observations {
		if !o.allowed || o.degraded {
			continue
		}
		at := 0
		for i, loss := range p.losses {
			switch {
			case o.from >= loss.to:
				at = 2*i + 2
			case o.to > loss.from:
				at = 2*i + 1
			}
		}
		epochs[at].admissions = append(epochs[at].admissions, o)
	}
	return epochs
}

// exceeded finds windows that certainly saw more admissions than they may.
func (p promise) exceeded(key string, e epoch) []string {
	var found []string
	for i, first := range e.admissions {
		n := 0
		for _, o := range e.admissions[i:] {
			if o.from >= first.from+p.window {
				break
			}
			if o.to < first.from+p.window {
				n++
			}
		}
		if n > e.requests {
			found = append(found, fmt.Sprintf("key %s: %d admitted within %v from %v, more than %d",
				key, n, p.window, first.from, e.requests))
		}
	}
	return found
}

// refusedEarly finds refusals although units certainly remained.
func (p promise) refusedEarly(key string, observations []observation) []string {
	var found []string
	var takers []observation
	for _, o := range observations {
		if o.allowed || o.degraded {
			takers = append(takers, o)
		}
	}
	for _, refusal := range observations {
		if refusal.allowed || refusal.degraded {
			continue
		}
		taken := 0
		for _, o := range takers {
			if o.from > refusal.to {
				break
			}
			if p.lasts(o) >= refusal.from {
				taken += o.units()
			}
		}
		if taken < p.requests {
			found = append(found, fmt.Sprintf("key %s: refused at %v with at most %d of %d taken",
				key, refusal.from, taken, p.requests))
		}
	}
	return found
}

// units is how many units an observation may take up. A degraded request may be
// counted by a command whose answer was lost, and again when what was admitted
// instead is reported: it has been declared that its count is not known.
func (o observation) units() int {
	switch {
	case o.degraded:
		return 2
	case o.allowed:
		return 1
	default:
		return 0
	}
}

// lasts is until when an observation may take up a unit.
func (p promise) lasts(o observation) time.Duration {
	if o.degraded {
		return o.to + p.late + p.window
	}
	return o.to + p.window
}

// counted bounds what a server has counted for a key: what was admitted after the
// last loss at least, and whatever may ever have been counted at most.
func (p promise) counted(trace []observation, key string) (least, most int) {
	var safe time.Duration
	if len(p.losses) > 0 {
		safe = p.losses[len(p.losses)-1].to
	}
	for _, o := range trace {
		if o.key != key || !o.degraded && !o.allowed {
			continue
		}
		most += o.units()
		if !o.degraded && o.from >= safe {
			least++
		}
	}
	return least, most
}

// recovery is the time from a moment to the first answer, to a request after
// it that the caller asks about, that is not degraded; false if there is none.
func recovery(trace []observation, since time.Duration, about func(observation) bool) (time.Duration, bool) {
	first := time.Duration(-1)
	for _, o := range trace {
		if about(o) && !o.degraded && o.from >= since && (first < 0 || o.to < first) {
			first = o.to
		}
	}
	return first - since, first >= 0
}
