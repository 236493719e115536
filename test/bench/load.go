package main

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// load is callers that each ask for the next decision as soon as they have the
// last.
type load struct {
	callers int
	order   []uint32 // of the keys, by their index; its length is a power of two
	every   int      // every so many decisions, one is timed
	known   bool     // each key has been asked for a few times before
}

// introduce asks for each of so many keys a few times.
func (l load) introduce(ctx context.Context, i *instance, keys int) {
	if !l.known {
		return
	}
	var callers sync.WaitGroup
	for c := range l.callers {
		callers.Go(func() {
			ask := i.newCaller()
			for range 3 {
				for key := c; key < keys; key += l.callers {
					_, _ = ask(ctx, key)
				}
			}
		})
	}
	callers.Wait()
}

// tally counts what one caller got.
type tally struct {
	decisions, admitted, errors int64
}

func (t *tally) add(o tally) {
	t.decisions += o.decisions
	t.admitted += o.admitted
	t.errors += o.errors
}

func (t *tally) count(admitted bool, err error) {
	t.decisions++
	switch {
	case err != nil:
		t.errors++
	case admitted:
		t.admitted++
	}
}

// run drives the instance for a time. begin is called when all callers wait for
// the start, end when all have their last decision.
func (l load) run(ctx context.Context, i *instance, d time.Duration, hs histograms, begin, end func()) tally {
	var (
		stop         atomic.Bool
		ready, ended sync.WaitGroup
		start        = make(chan struct{})
		tallies      = make([]tally, l.callers)
	)
	for c := range l.callers {
		ready.Add(1)
		ended.Go(func() {
			decide := i.newCaller()
			ready.Done()
			<-start
			tallies[c] = l.decide(ctx, decide, c, &stop, hs.shard(c))
		})
	}
	ready.Wait()
	begin()
	close(start)
	time.Sleep(d)
	stop.Store(true)
	ended.Wait()
	end()
	var all tally
	for _, t := range tallies {
		all.add(t)
	}
	return all
}

// offset spreads the callers over the order, so that they do not go in step.
func (l load) offset(caller int) int { return caller * (len(l.order)/l.callers + 1) }

func (l load) decide(ctx context.Context, decide caller, number int, stop *atomic.Bool, h *histogram) (t tally) {
	mask, next := len(l.order)-1, l.offset(number)
	// Not the same ones of all callers are timed.
	until := 1 + number%l.every
	for !stop.Load() {
		key := int(l.order[next&mask])
		next++
		if until--; until > 0 {
			t.count(decide(ctx, key))
			continue
		}
		until = l.every
		from := time.Now()
		t.count(decide(ctx, key))
		h.record(time.Since(from).Nanoseconds())
	}
	return t
}

// orderLength is enough for each of 10,000 keys to come several times.
const orderLength = 1 << 16

// uniform is an order in which all of n keys are equally likely.
func uniform(n int) []uint32 {
	random := rand.New(rand.NewPCG(1, 2))
	return fill(func() uint32 { return random.Uint32N(uint32(n)) })
}

// zipf is an order in which the k-th of n keys comes with a probability that is
// proportional to k^-1.1: of 10,000 keys, the first is asked for by a sixth.
func zipf(n int) []uint32 {
	z := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, uint64(n-1))
	return fill(func() uint32 { return uint32(z.Uint64()) })
}

func fill(next func() uint32) []uint32 {
	order := make([]uint32, orderLength)
	for i := range order {
		order[i] = next()
	}
	return order
}

// onCores runs f with so many cores for Go code, or all of them for 0.
func onCores(n int, f func() error) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(n))
	return f()
}
