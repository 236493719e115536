package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

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
	// bareDecision is the floor of a lone decision: see openBareDecision.
	bareDecision = "EVALSHA decide.lua"
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
	// With room for more than there are, callers' hits and results do not share lines of
	// the cache, which each of them writes to.
	const apart = 16
	call := limiter.Call{
		Op: limiter.Take, Hits: make([]limiter.Hit, len(keys), apart), Results: make([]limiter.Result, 0, apart),
	}
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

// openBareDecision sends the call that our engine makes of a lone request by
// go-redis alone. What the engine adds to the time is the difference.
func openBareDecision(t task) (*instance, error) {
	rule, err := ruleFor(policy.TokenBucket, policy.Exact, t.Limit)
	if err != nil {
		return nil, err
	}
	sha, args, err := recordCall(goRedis(t), rule, t.Keys[0])
	if err != nil {
		return nil, err
	}
	client := goRedis(t)
	return shared(func(ctx context.Context, key int) (bool, error) {
		err := client.EvalSha(ctx, sha, []string{t.Keys[key]}, args...).Err()
		return err == nil, err
	}, func() { _ = client.Close() }), nil
}

// recordCall has a request decided by a client, which it closes, and returns the
// script and the arguments, but for the key, that were sent for it.
func recordCall(client *redis.Client, rule *limiter.Rule, key string) (sha string, args []any, err error) {
	ctx := context.Background()
	defer func() { _ = client.Close() }()
	sent := &recorder{}
	client.AddHook(sent)
	counts := limiter.NewRedis(client, limiter.RedisOptions{})
	defer counts.Close(ctx)
	call := limiter.Call{Op: limiter.Take, Hits: []limiter.Hit{{Rule: rule, Key: key, Cost: 1}}}
	if err := counts.Do(ctx, &call); err != nil {
		return "", nil, err
	}
	const beforeArgs = 4 // evalsha, the script, the number of keys, the key
	if len(sent.args) <= beforeArgs {
		return "", nil, fmt.Errorf("the engine sent %d arguments, which is no call of a script with one key", len(sent.args))
	}
	return sent.args[1].(string), sent.args[beforeArgs:], nil
}

// recorder keeps the last EVALSHA that a client sends.
type recorder struct{ args []any }

func (r *recorder) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *recorder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (r *recorder) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			r.args = nil
			for _, arg := range cmd.Args() {
				if text, packed := arg.([]byte); packed {
					arg = bytes.Clone(text) // the engine uses it again
				}
				r.args = append(r.args, arg)
			}
		}
		return next(ctx, cmd)
	}
}
