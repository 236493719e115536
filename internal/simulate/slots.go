package simulate

import (
	"strconv"

	"github.com/tallyman-dev/tallyman/internal/limiter"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

// slots are those that Concurrency limits gave out. A trace does not say which
// request ends, so that the oldest one does.
type slots struct {
	held   map[string][]slot // by counter, the oldest first
	tokens int64
}

// slot is what one request holds of one counter.
type slot struct {
	token string
	units int64
}

func hasSlots(h limiter.Hit) bool { return h.Rule.Limit().Algorithm == policy.Concurrency }

// newToken is unique within a simulation.
func (s *slots) newToken() string {
	s.tokens++
	return strconv.FormatInt(s.tokens, 10)
}

// hold notes what an admitted request took, of limits in shadow too if they
// counted it. A counter cannot have more slots in use than its limit, so that
// older ones have ended by themselves.
func (s *slots) hold(token string, hits []limiter.Hit, shadows bool) {
	for i := range hits {
		h := &hits[i]
		if !hasSlots(*h) || h.Cost == 0 || h.Shadow && !shadows {
			continue
		}
		held := append(s.held[h.Key], slot{token, h.Cost})
		if extra := int64(len(held)) - h.Rule.Capacity(); extra > 0 {
			held = held[extra:]
		}
		s.held[h.Key] = held
	}
}

// release forgets the oldest request that holds slots of a counter.
func (s *slots) release(key string) (oldest slot, ok bool) {
	held := s.held[key]
	if len(held) == 0 {
		return slot{}, false
	}
	if len(held) == 1 {
		delete(s.held, key)
	} else {
		s.held[key] = held[1:]
	}
	return held[0], true
}
