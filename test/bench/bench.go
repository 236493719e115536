package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
)

// bench measures cases one after the other.
type bench struct {
	options
	server     *server
	progress   io.Writer
	results    results
	histograms histograms
}

// quiet is how many cores others may use during a sample before it is taken again.
const quiet = 0.25

// present are those of the names that were asked for and exist.
func (b *bench) present(names []string) (cs []contestant) {
	for _, name := range names {
		if len(b.contestants) > 0 && !slices.Contains(b.contestants, name) {
			continue
		}
		if c, err := contestantNamed(name); err == nil {
			cs = append(cs, c)
		}
	}
	return cs
}

// step is what is done with each contestant of a case in each round.
type step struct {
	name        string
	contestants []contestant
	sample      func(ctx context.Context, c contestant) (map[string]float64, error)
}

// rounds takes all steps, again and again, each time beginning with the next
// contestant.
func (b *bench) rounds(ctx context.Context, n int, steps []step) error {
	for round := range n {
		for _, s := range steps {
			_, _ = fmt.Fprintf(b.progress, "%d/%d %s\n", round+1, n, s.name)
			for i := range s.contestants {
				if err := ctx.Err(); err != nil {
					return err
				}
				c := s.contestants[(round+i)%len(s.contestants)]
				values, err := s.sample(ctx, c)
				if err != nil {
					return fmt.Errorf("measure %s in case %s: %w", c.name, s.name, err)
				}
				b.results.add(s.name, c.name, values)
			}
		}
	}
	return nil
}

func (b *bench) loadStep(lc loadCase) step {
	l := load{callers: lc.callers, order: lc.order(lc.keys), every: lc.every, known: lc.known}
	keys := keysFor(lc.keys)
	return step{lc.name, b.present(lc.contestants), func(ctx context.Context, c contestant) (values map[string]float64, err error) {
		t := task{Addr: b.server.addr, Keys: keys, Limit: lc.limit, Limits: lc.limits, Pods: 1}
		err = onCores(lc.cores, func() error {
			values, err = b.quietest(func() (map[string]float64, error) { return b.sample(ctx, c, t, l) })
			return err
		})
		if err == nil && lc.limit == plenty {
			values[wrong] = values[asked] - values[admitted]
		}
		return values, err
	}}
}

// quietest takes a sample again while others keep the machine busy, and returns
// the one that was disturbed the least.
func (b *bench) quietest(sample func() (map[string]float64, error)) (best map[string]float64, err error) {
	for range 1 + b.retakes {
		values, err := sample()
		if err != nil {
			return nil, err
		}
		if best == nil || values[otherCPU] < best[otherCPU] {
			best = values
		}
		if best[otherCPU] <= quiet {
			break
		}
	}
	return best, nil
}

// sample opens a contestant, warms it up and measures it once.
func (b *bench) sample(ctx context.Context, c contestant, t task, l load) (map[string]float64, error) {
	if err := b.server.empty(ctx); err != nil {
		return nil, err
	}
	i, err := c.open(t)
	if err != nil {
		return nil, err
	}
	defer i.close()
	l.introduce(ctx, i, len(t.Keys))
	nothing := func() {}
	l.run(ctx, i, b.duration/3, b.histograms, nothing, nothing)

	var from, to reading
	var beginErr, endErr error
	begin := func() {
		b.histograms.reset()
		runtime.GC()
		from, beginErr = b.server.read(ctx, c.sends)
	}
	end := func() { to, endErr = b.server.read(ctx, c.sends) }
	got := l.run(ctx, i, b.duration, b.histograms, begin, end)
	if beginErr != nil {
		return nil, beginErr
	}
	if endErr != nil {
		return nil, endErr
	}
	return measures(from, to, got, b.histograms), nil
}

func measures(from, to reading, got tally, hs histograms) map[string]float64 {
	n := float64(max(1, got.decisions))
	elapsed := to.at.Sub(from.at)
	client := (to.client - from.client).Seconds() * 1e6 / n
	redis := (to.redis - from.redis).Seconds() * 1e6 / n
	return map[string]float64{
		throughput: n / elapsed.Seconds(),
		period:     float64(elapsed.Nanoseconds()) / n,
		p50:        hs.percentile(0.50),
		p99:        hs.percentile(0.99),
		allocs:     float64(to.allocations-from.allocations) / n,
		calls:      float64(to.calls-from.calls) / n,
		clientCPU:  client,
		redisCPU:   redis,
		cpu:        client + redis,
		failures:   float64(got.errors),
		share:      float64(got.admitted) / n,
		asked:      float64(got.decisions),
		admitted:   float64(got.admitted),
		otherCPU:   others(from, to),
	}
}
