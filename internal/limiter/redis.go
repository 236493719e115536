package limiter

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// Hooks tell of what happens on the side of a decision. A nil hook is not
// called. Hooks are called on the request's way: they are quick, and safe for
// concurrent use.
type Hooks struct {
	// Corrupt is told the key of a counter that held something else than a
	// counter's state. It has started anew.
	Corrupt func(key string)
	// NotGivenBack is told of units that were taken for a request that another
	// limit then refused, when they could not be given back. It can happen on a
	// Redis Cluster only, for hits whose keys have different tags.
	NotGivenBack func(hits []Hit, err error)
}

// Redis counts in Redis, by Redis's clock. It is safe for concurrent use.
//
// Each call of Take and Peek is one script call. On a Redis Cluster it is one
// for each hash tag, see takeInTurn.
//
// Nothing is repeated when the outcome is unclear, whatever the client's
// MaxRetries. The client should have ContextTimeoutEnabled, since without it a
// context's deadline does not end the wait for an answer.
type Redis struct {
	client  once
	cluster bool
	hooks   Hooks
	// now replaces Redis's clock in tests.
	now func() int64
}

// NewRedis returns a store that uses the client, which stays the caller's to
// close.
func NewRedis(client redis.UniversalClient, hooks Hooks) *Redis {
	_, cluster := client.(*redis.ClusterClient)
	return &Redis{client: once{client}, cluster: cluster, hooks: hooks}
}

// Take implements Store.
func (r *Redis) Take(ctx context.Context, hits []Hit) ([]Result, error) {
	return r.decide(ctx, hits, verbTake)
}

// Peek implements Store.
func (r *Redis) Peek(ctx context.Context, hits []Hit) ([]Result, error) {
	return r.decide(ctx, hits, verbPeek)
}

// verb is what the script is to do.
type verb string

const (
	verbTake   verb = "take"
	verbPeek   verb = "peek"
	verbReturn verb = "return"
)

func (r *Redis) decide(ctx context.Context, hits []Hit, v verb) ([]Result, error) {
	decisions, err := prepare(hits)
	if err != nil {
		return nil, err
	}
	switch {
	case len(hits) == 0:
	case r.cluster && !oneTag(hits):
		err = r.takeInTurn(ctx, hits, decisions, v)
	default:
		err = r.run(ctx, hits, decisions, v)
	}
	if err != nil {
		return nil, err
	}
	return conclude(hits, decisions, v == verbTake), nil
}

// run calls the script, and puts its answer into the decisions.
func (r *Redis) run(ctx context.Context, hits []Hit, decisions []decision, v verb) error {
	now := any("")
	if r.now != nil {
		now = r.now()
	}
	keys := make([]string, len(hits))
	args := append(make([]any, 0, 2+9*len(hits)), now, string(v))
	for i := range hits {
		keys[i] = hits[i].Key
		args = append(args, decisions[i].arguments(hits[i].group())...)
	}
	reply, err := takeScript.Run(ctx, r.client, keys, args...).Int64Slice()
	if err != nil {
		return fmt.Errorf("%s %d counters in Redis: %w", v, len(hits), err)
	}
	return r.read(reply, hits, decisions)
}

// replySize is the integers of a reply for each hit.
const replySize = 5

func (r *Redis) read(reply []int64, hits []Hit, decisions []decision) error {
	if len(reply) != 1+replySize*len(hits) {
		return fmt.Errorf("read the script's reply: %d integers for %d counters", len(reply), len(hits))
	}
	now, rest := reply[0], reply[1:]
	for i := range hits {
		part := rest[i*replySize:]
		if part[1] == 1 && r.hooks.Corrupt != nil {
			r.hooks.Corrupt(hits[i].Key)
		}
		decisions[i].fits = part[0] == 1
		decisions[i].state = state{now: now, at: part[2], used: part[3], rest: part[4]}
	}
	return nil
}
