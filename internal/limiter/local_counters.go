package limiter

import (
	"context"
	"hash/maphash"
	"time"
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
