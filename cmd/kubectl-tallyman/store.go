package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/limiter"
	"github.com/tallyman-dev/tallyman/internal/simulate"
	"github.com/tallyman-dev/tallyman/internal/store"
)

// memoryStore is the URL of counting in this process.
const memoryStore = "memory:"

const (
	// connectTimeout bounds the wait for a Redis's first answer.
	connectTimeout = 5 * time.Second
	// cleanTimeout bounds the time to find and delete our counters among all
	// the keys of a Redis, of which it goes through a million in a second or so.
	cleanTimeout = time.Minute
	// cleanBatch is how many keys are looked at and deleted at a time.
	cleanBatch = 1000
)

// simulated is a store for one simulation.
type simulated struct {
	limiter.Store
	// prefix of all its keys.
	prefix string
	client redis.UniversalClient // nil in memory
}

// openStore connects to a store that takes its time from the clock.
func openStore(ctx context.Context, url string, clock *simulate.Clock) (*simulated, error) {
	prefix := "tallyman-sim-" + rand.Text()
	if url == memoryStore {
		return &simulated{Store: limiter.NewSimulatedMemory(clock.Now), prefix: prefix}, nil
	}
	client, err := store.Connect(store.ConnectOptions{
		URL: url, Username: os.Getenv("TALLYMAN_STORE_USERNAME"), Password: os.Getenv("TALLYMAN_STORE_PASSWORD"),
	})
	if err != nil {
		return nil, fmt.Errorf("--store: %w", err)
	}
	pinging, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := client.Ping(pinging).Err(); err != nil {
		_ = client.Close()
		return nil, failure{fmt.Errorf("reach the store: %w", err)}
	}
	counters := limiter.NewRedis(client, limiter.RedisOptions{Now: clock.Micros})
	return &simulated{Store: counters, prefix: prefix, client: client}, nil
}

// close deletes the counters, also when ctx has ended.
func (s *simulated) close(ctx context.Context) error {
	if s.client == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	clean := s.deleteAll(ctx)
	if clean != nil {
		clean = fmt.Errorf("delete the counters %s:*, which otherwise expire by themselves: %w", s.prefix, clean)
	}
	if err := errors.Join(clean, s.client.Close()); err != nil {
		return failure{err}
	}
	return nil
}

func (s *simulated) deleteAll(ctx context.Context) error {
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			return deleteKeys(ctx, node, s.prefix+":*")
		})
	}
	return deleteKeys(ctx, s.client, s.prefix+":*")
}

// deleteKeys deletes what matches on one node, each key by itself: on a cluster
// a command has keys of one slot only.
func deleteKeys(ctx context.Context, node redis.Cmdable, pattern string) error {
	var cursor uint64
	for {
		keys, next, err := node.Scan(ctx, cursor, pattern, cleanBatch).Result()
		if err != nil {
			return err
		}
		if len(keys) > 0 {
			_, err = node.Pipelined(ctx, func(p redis.Pipeliner) error {
				for _, key := range keys {
					p.Unlink(ctx, key)
				}
				return nil
			})
		}
		if err != nil || next == 0 {
			return err
		}
		cursor = next
	}
}
