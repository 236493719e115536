package main

import (
	"context"
	"strconv"
	"time"

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
	{tallyman, policy.TokenBucket, script, open(policy.TokenBucket, policy.Exact)},
	{tallymanFixedWindow, policy.FixedWindow, script, open(policy.FixedWindow, policy.Exact)},
	{tallymanSlidingWindow, policy.SlidingWindow, script, open(policy.SlidingWindow, policy.Exact)},
	{tallymanSlidingLog, policy.SlidingLog, script, open(policy.SlidingLog, policy.Exact)},
	{tallymanLeased, policy.TokenBucket, script, open(policy.TokenBucket, policy.Leased)},
}

func open(a policy.Algorithm, mode policy.DistributionMode) func(t task) (*instance, error) {
	return func(t task) (*instance, error) {
		rule, err := ruleFor(a, mode, t.Limit)
		if err != nil {
			return nil, err
		}
		client, err := store.Connect(store.ConnectOptions{URL: "redis://" + t.Addr})
		if err != nil {
			return nil, err
		}
		counts := limiter.NewRedis(client, limiter.RedisOptions{})
		engine := limiter.NewEngine(counts, limiter.EngineOptions{
			Pods: func(*limiter.Rule) (live, place int) { return t.Pods, 0 },
		})
		keys := prefixed(t.Keys, t.Limits)
		return &instance{
			newCaller: func() caller { return ask(engine, rule, keys) },
			close: func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				engine.Close(ctx)
				counts.Close(ctx)
				_ = client.Close()
			},
		}, nil
	}
}

// ruleFor makes the rule as a policy's limit would, with its defaults.
func ruleFor(a policy.Algorithm, mode policy.DistributionMode, l limit) (*limiter.Rule, error) {
	if a == policy.SlidingLog {
		l.Requests = min(l.Requests, policy.MaxSlidingLogRequests)
	}
	spec := policy.Spec{Limits: []policy.Limit{{
		Algorithm: a, Requests: &l.Requests, Window: policy.Duration(l.Window), Burst: &l.Burst,
		Distribution: policy.Distribution{Mode: mode},
	}}}
	spec.Default()
	return limiter.PrepareLimit(&spec.Limits[0])
}

// ask returns a caller with a call of its own, which it uses again and again. As
// in the library, the end of a context does not end what is being decided.
func ask(counts limiter.Store, rule *limiter.Rule, keys [][]string) caller {
	call := limiter.Call{Op: limiter.Take, Hits: make([]limiter.Hit, len(keys))}
	for i := range call.Hits {
		call.Hits[i] = limiter.Hit{Rule: rule, Cost: 1}
	}
	return func(_ context.Context, key int) (bool, error) {
		for i := range call.Hits {
			call.Hits[i].Key = keys[i][key]
		}
		err := counts.Do(context.Background(), &call)
		return err == nil && call.Granted > 0, err
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
