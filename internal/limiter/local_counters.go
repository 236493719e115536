package limiter

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// localCounters count within this process, each key by itself: a Memory in
// shards, so that requests for different keys seldom wait for one another. It is
// safe for concurrent use.
type localCounters struct {
	seed   maphash.Seed
	shards [localShards]*Memory
}

// localShards is a power of two.
const localShards = 64

func newLocalCounters(now func() time.Time) *localCounters {
	l := &localCounters{seed: maphash.MakeSeed()}
	for i := range l.shards {
		l.shards[i] = NewMemory(now)
	}
	return l
}

// do carries out a call of one hit. It fails only with ErrInvalid.
func (l *localCounters) do(c *Call) error {
	shard := maphash.String(l.seed, c.Hits[0].Key) % localShards
	return l.shards[shard].Do(context.Background(), c)
}

// singleCalls are calls of one hit.
var singleCalls = sync.Pool{New: func() any { return &Call{Hits: make([]Hit, 1)} }}

// single returns a call about one enforced hit, to be let go of with release.
func single(op Op, h *Hit, n int64) *Call {
	c := singleCalls.Get().(*Call)
	c.Op, c.Count, c.Hits[0] = op, n, *h
	c.Hits[0].Shadow = false
	return c
}

func (c *Call) release() {
	*c = Call{Hits: c.Hits, Results: c.Results[:0]}
	c.Hits[0] = Hit{}
	singleCalls.Put(c)
}

// part is a rule with the part of another one's limit that one pod has.
type part struct {
	live, place int
	rule        *Rule
}

// partOf returns the rule with the part of the limit that the pod of a place,
// from 0, has to itself among so many live ones. The parts of all places add up
// to the limit, and so do those of a TokenBucket's burst; some are 0 when there
// are more pods than units. The rule remembers the last part that was asked for.
func (r *Rule) partOf(live, place int) (*Rule, error) {
	if live <= 1 {
		return r, nil
	}
	if p := r.part.Load(); p != nil && p.live == live && p.place == place {
		return p.rule, nil
	}
	l := r.limit
	l.Requests, l.Burst = divide(l.Requests, live, place), divide(l.Burst, live, place)
	if l.Burst == 0 && l.Algorithm == policy.TokenBucket {
		l.Requests, l.Burst = 0, 1 // a bucket without room refuses
	}
	rule, err := NewRule(l)
	if err == nil {
		r.part.Store(&part{live: live, place: place, rule: rule})
	}
	return rule, err
}

// divide is what a place gets of n; the first places share the remainder.
func divide(n int64, live, place int) int64 {
	each, rest := n/int64(live), n%int64(live)
	if int64(place) < rest {
		each++
	}
	return each
}
