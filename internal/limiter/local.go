package limiter

import (
	"context"
	"sync"
	"time"
)

// local is a way of deciding one hit without asking the store each time: a
// distribution other than Exact.
type local interface {
	// take grants as many of n like requests as it can, 0..n. What it may wait
	// for ends with the timeout. An error is for the hit's failure policy.
	take(ctx context.Context, h *Hit, n int64, timeout time.Duration) (granted int64, r Result, err error)
	// giveBack undoes what n granted requests took.
	giveBack(h *Hit, n int64)
}

// Pods tells how many pods share a rule's limit, and which of them, from 0, this
// one is; a number below 1 is not known, and stands for one pod. It is called on a
// request's way, and quick.
type Pods func(r *Rule) (live, place int)

// Events tell what an Engine does on the side of decisions. They are called on a
// request's way or in the background: they are quick, and safe for concurrent
// use. Nil functions are not called.
type Events struct {
	// Overshoot is told how many units a Synced limit was found to have admitted
	// above what the shared count had room for.
	Overshoot func(r *Rule, units int64)
	// Unreported is told how many units a backstop admitted that could not be
	// charged to the shared count.
	Unreported func(units int64)
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
