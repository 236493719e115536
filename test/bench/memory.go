package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// inAnHour is a limit for which a bucket takes three minutes to get a unit back,
// so that no counter goes while others are made.
var inAnHour = limit{Requests: 20, Window: time.Hour, Burst: 20}

// few is enough counters to ask Redis for the size of each.
const few = 200

var storing = []string{
	tallyman, tallymanFixedWindow, tallymanSlidingWindow, tallymanSlidingLog,
	redisRate, throttledName, ululeName, rueidisWindow,
}

// bytesStep measures what counters take in Redis.
func (b *bench) bytesStep() step { return step{bytesCase, b.present(storing), b.bytes} }

func (b *bench) bytes(ctx context.Context, c contestant) (map[string]float64, error) {
	values := map[string]float64{}
	for metric, requests := range map[string]int{bytesOfOne: 1, bytesOfMany: 10} {
		if _, err := b.fill(ctx, c, few, requests); err != nil {
			return nil, err
		}
		size, err := b.sizeOfAll(ctx)
		if err != nil {
			return nil, err
		}
		values[metric] = float64(size) / few
	}
	grown, err := b.fill(ctx, c, b.counters, 1)
	if err != nil {
		return nil, err
	}
	keys, err := b.server.client.DBSize(ctx).Result()
	if err != nil {
		return nil, err
	}
	values[redisKeys] = float64(keys) / float64(b.counters)
	values[bytesUsed] = float64(grown) / float64(b.counters)
	return values, nil
}

// fill empties Redis, then asks a contestant so often for each of the keys, and
// returns how many bytes more Redis uses. A first look at a few keys, which are
// removed, leaves scripts and connections out of that.
func (b *bench) fill(ctx context.Context, c contestant, keys, requests int) (int64, error) {
	if err := b.server.empty(ctx); err != nil {
		return 0, err
	}
	i, err := c.open(task{Addr: b.server.addr, Keys: keysFor(keys), Limit: inAnHour, Limits: 1, Pods: 1})
	if err != nil {
		return 0, err
	}
	defer i.close()
	if err := touch(ctx, i, few); err != nil {
		return 0, err
	}
	if err := b.server.empty(ctx); err != nil {
		return 0, err
	}
	before, err := b.server.usedMemory(ctx)
	if err != nil {
		return 0, err
	}
	for range requests {
		if err := touch(ctx, i, keys); err != nil {
			return 0, err
		}
	}
	after, err := b.server.usedMemory(ctx)
	return after - before, err
}

// touch asks for each of the first keys once, with 64 callers.
func touch(ctx context.Context, i *instance, keys int) error {
	var next atomic.Int64
	var failure error
	var once sync.Once
	var callers sync.WaitGroup
	for range 64 {
		callers.Go(func() {
			decide := i.newCaller()
			for n := next.Add(1) - 1; n < int64(keys); n = next.Add(1) - 1 {
				if _, err := decide(ctx, int(n)); err != nil {
					once.Do(func() { failure = err })
					return
				}
			}
		})
	}
	callers.Wait()
	return failure
}

func (b *bench) sizeOfAll(ctx context.Context) (total int64, err error) {
	keys := b.server.client.Scan(ctx, 0, "", 1000).Iterator()
	for keys.Next(ctx) {
		size, err := b.server.client.MemoryUsage(ctx, keys.Val(), 0).Result()
		if err != nil {
			return 0, err
		}
		total += size
	}
	return total, keys.Err()
}
