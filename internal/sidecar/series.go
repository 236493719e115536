package sidecar

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// series are counters by policy and limit, which are the labels that their vector has
// left. They are remembered: on a request's way a look by labels takes several times as
// long. They are safe for concurrent use.
type series struct {
	vec   *prometheus.CounterVec
	mu    sync.Mutex // for changes
	known atomic.Pointer[map[limitName]prometheus.Counter]
}

func newSeries(vec *prometheus.CounterVec) *series {
	s := &series{vec: vec}
	s.known.Store(&map[limitName]prometheus.Counter{})
	return s
}

// inc adds one to a limit's counter.
func (s *series) inc(limit limitName) {
	c, known := (*s.known.Load())[limit]
	if !known {
		c = s.add(limit)
	}
	c.Inc()
}

// add makes a counter known. There are few, and each is added once.
func (s *series) add(limit limitName) prometheus.Counter {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.vec.WithLabelValues(limit.policy, limit.limit)
	known := maps.Clone(*s.known.Load())
	known[limit] = c
	s.known.Store(&known)
	return c
}

// drop removes a limit's counter. What is counted afterwards begins anew.
func (s *series) drop(limit limitName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.vec.DeleteLabelValues(limit.policy, limit.limit)
	known := maps.Clone(*s.known.Load())
	delete(known, limit)
	s.known.Store(&known)
}
