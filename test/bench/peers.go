package main

import (
	"context"
	"strconv"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	ulule "github.com/ulule/limiter/v3"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"
	"golang.org/x/time/rate"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// The names of the peers, and of the floor.
const (
	redisRate     = "redis_rate"
	throttledName = "throttled"
	ululeName     = "ulule"
	rueidisWindow = "rueidis-window"
	rueidisTuned  = "rueidis-window-20µs"
	xTimeRate     = "x/time/rate"
	xTimeByKey    = "x/time/rate by key"
	floorScript   = "EVALSHA return 1"
	floorIncr     = "INCR"
)

// peers work as their documentation shows, with their clients' defaults.
var peers = []contestant{
	{redisRate, policy.TokenBucket, script, openRedisRate},
	{throttledName, policy.TokenBucket, []string{
		"time", "time", // each comes with a GET in one pipeline
		"setnx", "expire", "eval",
	}, openThrottled},
	{ululeName, policy.FixedWindow, script, openUlule},
	{rueidisWindow, policy.FixedWindow, script, openRueidis(rueidis.ClientOption{})},
	{rueidisTuned, policy.FixedWindow, script, openRueidis(rueidis.ClientOption{MaxFlushDelay: 20 * time.Microsecond})},
	{xTimeRate, policy.TokenBucket, nil, openXTimeRate},
	{xTimeByKey, policy.TokenBucket, nil, openXTimeByKey},
}

// floor is what a decision through go-redis costs at the least, when it is alone
// in its call.
var floor = []contestant{
	{bareDecision, policy.TokenBucket, script, openBareDecision},
	{floorScript, "", script, openFloor(func(ctx context.Context, c *redis.Client, sha, key string) error {
		return c.EvalSha(ctx, sha, []string{key}).Err()
	})},
	{floorIncr, "", []string{"incr"}, openFloor(func(ctx context.Context, c *redis.Client, _, key string) error {
		return c.Incr(ctx, key).Err()
	})},
}

func goRedis(t task) *redis.Client { return redis.NewClient(&redis.Options{Addr: t.Addr}) }

// shared is an instance whose callers are all one function.
func shared(c caller, closing func()) *instance {
	return &instance{newCaller: func() caller { return c }, close: closing}
}

func openRedisRate(t task) (*instance, error) {
	client := goRedis(t)
	limiter := redis_rate.NewLimiter(client)
	l := redis_rate.Limit{Rate: int(t.Limit.Requests), Burst: int(t.Limit.Burst), Period: t.Limit.Window}
	return shared(func(ctx context.Context, key int) (bool, error) {
		result, err := limiter.Allow(ctx, t.Keys[key], l)
		return err == nil && result.Allowed > 0, err
	}, func() { _ = client.Close() }), nil
}

func openThrottled(t task) (*instance, error) {
	client := goRedis(t)
	keys, err := goredisstore.NewCtx(client, "throttled:")
	if err != nil {
		return nil, err
	}
	limiter, err := throttled.NewGCRARateLimiterCtx(keys, throttled.RateQuota{
		MaxRate:  throttled.PerDuration(int(t.Limit.Requests), t.Limit.Window),
		MaxBurst: int(t.Limit.Burst) - 1, // it counts those beyond the first
	})
	if err != nil {
		return nil, err
	}
	return shared(func(ctx context.Context, key int) (bool, error) {
		limited, _, err := limiter.RateLimitCtx(ctx, t.Keys[key], 1)
		return err == nil && !limited, err
	}, func() { _ = client.Close() }), nil
}

func openUlule(t task) (*instance, error) {
	client := goRedis(t)
	keys, err := ululeredis.NewStore(client)
	if err != nil {
		return nil, err
	}
	limiter := ulule.New(keys, ulule.Rate{Limit: t.Limit.Requests, Period: t.Limit.Window})
	return shared(func(ctx context.Context, key int) (bool, error) {
		result, err := limiter.Get(ctx, t.Keys[key])
		return err == nil && !result.Reached, err
	}, func() { _ = client.Close() }), nil
}

// windowScript counts in a window that starts with its first request, as
// rueidislimiter does: a counter and a key with the window's end, by the caller's
// clock, in milliseconds. KEYS: counter, end. ARGV: now, length of the window.
var windowScript = rueidis.NewLuaScript(`
local now, ends = tonumber(ARGV[1]), tonumber(redis.call('GET', KEYS[2]))
if not ends or ends <= now then
  ends = now + tonumber(ARGV[2])
  redis.call('SET', KEYS[1], 0, 'PX', ARGV[2])
  redis.call('SET', KEYS[2], ends, 'PX', ARGV[2])
end
return {redis.call('INCR', KEYS[1]), ends}
`)

// openRueidis stands in for rueidislimiter, which the Go module proxy does not
// have: a script with the same commands, through the same client.
func openRueidis(option rueidis.ClientOption) func(t task) (*instance, error) {
	return func(t task) (*instance, error) {
		option := option
		option.InitAddress = []string{t.Addr}
		client, err := rueidis.NewClient(option)
		if err != nil {
			return nil, err
		}
		ends := make([]string, len(t.Keys))
		for i, key := range t.Keys {
			ends[i] = key + ":ends"
		}
		window := strconv.FormatInt(t.Limit.Window.Milliseconds(), 10)
		return shared(func(ctx context.Context, key int) (bool, error) {
			now := strconv.FormatInt(time.Now().UnixMilli(), 10)
			reply := windowScript.Exec(ctx, client, []string{t.Keys[key], ends[key]}, []string{now, window})
			values, err := reply.AsIntSlice()
			return err == nil && values[0] <= t.Limit.Requests, err
		}, client.Close), nil
	}
}

// openXTimeRate has its limiters at hand, without a look-up by key: the least
// that it can take.
func openXTimeRate(t task) (*instance, error) {
	limiters := make([]*rate.Limiter, len(t.Keys))
	perSecond := rate.Limit(float64(t.Limit.Requests) / t.Limit.Window.Seconds())
	for i := range limiters {
		limiters[i] = rate.NewLimiter(perSecond, int(t.Limit.Burst))
	}
	return shared(func(_ context.Context, key int) (bool, error) {
		return limiters[key].Allow(), nil
	}, func() {}), nil
}

// openXTimeByKey looks its limiters up by key, in a map that nobody changes.
func openXTimeByKey(t task) (*instance, error) {
	limiters := make(map[string]*rate.Limiter, len(t.Keys))
	perSecond := rate.Limit(float64(t.Limit.Requests) / t.Limit.Window.Seconds())
	for _, key := range t.Keys {
		limiters[key] = rate.NewLimiter(perSecond, int(t.Limit.Burst))
	}
	return shared(func(_ context.Context, key int) (bool, error) {
		return limiters[t.Keys[key]].Allow(), nil
	}, func() {}), nil
}

func openFloor(send func(ctx context.Context, c *redis.Client, sha, key string) error) func(t task) (*instance, error) {
	return func(t task) (*instance, error) {
		client := goRedis(t)
		sha, err := client.ScriptLoad(context.Background(), "return 1").Result()
		if err != nil {
			_ = client.Close()
			return nil, err
		}
		return shared(func(ctx context.Context, key int) (bool, error) {
			err := send(ctx, client, sha, t.Keys[key])
			return err == nil, err
		}, func() { _ = client.Close() }), nil
	}
}
