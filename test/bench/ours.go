package main

import (
	"context"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/limiter"
	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/store"
)

// The names of our contestants. The first is Exact with a TokenBucket, the
// algorithm that most peers have.
const (
	tallyman              = "tallyman"
	tallymanFixedWindow   = "tallyman/FixedWindow"
	tallymanSlidingWindow = "tallyman/SlidingWindow"
	tallymanSlidingLog    = "tallyman/SlidingLog"
	tallymanLeased        = "tallyman/Leased"
)

// This file is all that knows our engine's API.
var ours = []contestant{
	{tallyman, policy.TokenBucket, script, exact(policy.TokenBucket)},
	{tallymanFixedWindow, policy.FixedWindow, script, exact(policy.FixedWindow)},
	{tallymanSlidingWindow, policy.SlidingWindow, script, exact(policy.SlidingWindow)},
	{tallymanSlidingLog, policy.SlidingLog, script, exact(policy.SlidingLog)},
}

func exact(a policy.Algorithm) func(t task) (*instance, error) {
	return func(t task) (*instance, error) {
		client, err := store.Connect(store.ConnectOptions{URL: "redis://" + t.Addr})
		if err != nil {
			return nil, err
		}
		return oursOn(limiter.NewRedis(client, limiter.Hooks{}), client, a, t), nil
	}
}

func oursOn(s limiter.Store, client redis.UniversalClient, a policy.Algorithm, t task) *instance {
	l := limiter.Limit{Algorithm: a, Requests: t.Limit.Requests, Window: t.Limit.Window, Burst: t.Limit.Burst}
	if a == policy.SlidingLog {
		l.Requests = min(l.Requests, policy.MaxSlidingLogRequests)
	}
	keys := prefixed(t.Keys, t.Limits)
	return &instance{
		newCaller: func() caller {
			hits := make([]limiter.Hit, t.Limits)
			for i := range hits {
				hits[i] = limiter.Hit{Limit: l, Cost: 1}
			}
			return func(ctx context.Context, key int) (bool, error) {
				for i := range hits {
					hits[i].Key = keys[i][key]
				}
				results, err := s.Take(ctx, hits)
				if err != nil {
					return false, err
				}
				for i := range results {
					if !results[i].Allowed {
						return false, nil
					}
				}
				return true, nil
			}
		},
		close: func() { _ = client.Close() },
	}
}

// prefixed are the keys of each limit; those of the first are the keys as they are.
func prefixed(keys []string, limits int) [][]string {
	all := [][]string{keys}
	for i := 1; i < limits; i++ {
		these := make([]string, len(keys))
		for j, key := range keys {
			these[j] = strconv.Itoa(i) + key
		}
		all = append(all, these)
	}
	return all
}
