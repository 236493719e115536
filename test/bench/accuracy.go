package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

const processes = 4

// sharedCase is several processes on one key.
type sharedCase struct {
	name        string
	contestants []string
	limit       limit
	// perSecond of each process; 0 is as fast as it can.
	perSecond [processes]float64
	// seconds that it lasts. It starts and ends slack away from a second's
	// boundary, so that windows which are aligned are all met.
	seconds int
}

const slack = 50 * time.Millisecond

// thousand admits 1000 a second: in one go, where the algorithm allows it.
var thousand = limit{Requests: 1000, Window: time.Second, Burst: 1000}

func sharedCases(windows int) []sharedCase {
	saturated := []string{tallyman, tallymanLeased, redisRate}
	return []sharedCase{
		{name: accuracyCase, limit: thousand, seconds: windows, contestants: []string{
			tallyman, tallymanFixedWindow, tallymanSlidingWindow, tallymanSlidingLog, tallymanLeased,
			redisRate, throttledName, ululeName, rueidisWindow, xTimeRate,
		}},
		// Four times the limit, and 1.2 times of it.
		{name: steadyCase, limit: thousand, seconds: windows, contestants: saturated, perSecond: [processes]float64{1000, 1000, 1000, 1000}},
		{name: unevenCase, limit: thousand, seconds: windows, contestants: saturated, perSecond: [processes]float64{720, 300, 120, 60}},
	}
}

func (b *bench) sharedStep(sc sharedCase) step {
	return step{sc.name, b.present(sc.contestants), func(ctx context.Context, c contestant) (map[string]float64, error) {
		return b.share(ctx, c, sc)
	}}
}

func (b *bench) share(ctx context.Context, c contestant, sc sharedCase) (map[string]float64, error) {
	if err := b.server.empty(ctx); err != nil {
		return nil, err
	}
	// Time for the processes to start and to connect.
	boundary := time.Now().Add(1500 * time.Millisecond).Truncate(time.Second).Add(time.Second)
	job := job{
		Contestant: c.name,
		Task:       task{Addr: b.server.addr, Keys: keysFor(2), Limit: sc.limit, Limits: 1, Pods: processes},
		Callers:    8,
		Start:      boundary.Add(slack),
		End:        boundary.Add(time.Duration(sc.seconds)*time.Second - slack),
	}
	var workers []*worker
	for _, perSecond := range sc.perSecond {
		job.PerSecond = perSecond
		w, err := startWorker(ctx, job)
		if err != nil {
			return nil, err
		}
		defer w.kill()
		workers = append(workers, w)
	}

	time.Sleep(time.Until(job.Start.Add(-slack / 2)))
	before, err := b.server.calls(ctx, c.sends)
	if err != nil {
		return nil, err
	}
	time.Sleep(time.Until(job.End.Add(slack / 2)))
	after, err := b.server.calls(ctx, c.sends)
	if err != nil {
		return nil, err
	}
	var all tally
	last := job.Start
	for _, w := range workers {
		r, err := w.report()
		if err != nil {
			return nil, fmt.Errorf("wait for a process of %s: %w", c.name, err)
		}
		all.add(tally{r.Decisions, r.Admitted, r.Errors})
		if r.Last.After(last) {
			last = r.Last
		}
	}
	most := promised(c.algorithm, sc.limit, slack, last.Sub(boundary))
	return map[string]float64{
		asked:     float64(all.decisions),
		admitted:  float64(all.admitted),
		contract:  float64(most),
		over:      float64(max(0, all.admitted-most)),
		fulfilled: float64(all.admitted) / float64(most),
		perUnit:   float64(after-before) / float64(max(1, all.admitted)),
		failures:  float64(all.errors),
	}, nil
}

// promised is the most that an algorithm may admit to callers that always ask,
// from one time to another; both count from the start of a window.
func promised(a policy.Algorithm, l limit, from, to time.Duration) int64 {
	earned := func(d time.Duration) int64 {
		return int64(math.Floor(float64(l.Requests) * d.Seconds() / l.Window.Seconds()))
	}
	switch a {
	case policy.TokenBucket:
		return l.Burst + earned(to-from)
	case policy.SlidingWindow:
		// The first window has none before it; in a later one, as much becomes
		// free as time has passed of it.
		return max(l.Requests, earned(to))
	default:
		windows := int64(to / l.Window)
		return l.Requests * (windows + 1)
	}
}
