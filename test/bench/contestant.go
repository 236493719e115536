package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// limit is what a contestant is to hold, for each key.
type limit struct {
	// Requests per Window. Algorithms that have a burst have Burst, the others
	// ignore it.
	Requests int64
	Window   time.Duration
	Burst    int64
}

// plenty admits all that a run can ask: 278,000 a second and a store of a billion.
var plenty = limit{Requests: 1e9, Window: time.Hour, Burst: 1e9}

// task is what a contestant is set up for.
type task struct {
	// Addr of the redis-server.
	Addr string
	// Keys to decide for. They are made ahead, for all contestants alike.
	Keys  []string
	Limit limit
	// Limits is how many limits each request is held to, 1 or more; only our own
	// contestants can have more than one in one decision.
	Limits int
	// Pods is how many processes share the keys.
	Pods int
}

// caller decides requests for a key, given by its index. Each goroutine has its
// own.
type caller func(ctx context.Context, key int) (admitted bool, err error)

// instance is a contestant at work.
type instance struct {
	newCaller func() caller
	close     func()
}

type contestant struct {
	name string
	// algorithm says what it promises to admit.
	algorithm policy.Algorithm
	// sends are the commands that it sends to Redis; Redis's statistics count
	// those that scripts call as well. A name that stands twice is one command
	// that always comes with another which cannot be told from a script's.
	sends []string
	open  func(t task) (*instance, error)
}

// script are the commands of whoever only runs scripts.
var script = []string{"eval", "evalsha", "evalsha_ro", "fcall"}

// contestants in the order of the tables.
var contestants = slices.Concat(ours, peers, floor, rateLimitServices, proxies)

func contestantNamed(name string) (contestant, error) {
	i := slices.IndexFunc(contestants, func(c contestant) bool { return c.name == name })
	if i < 0 {
		return contestant{}, fmt.Errorf("no contestant %q: have %s", name, strings.Join(namesOf(contestants), ", "))
	}
	return contestants[i], nil
}

func namesOf(cs []contestant) []string {
	var names []string
	for _, c := range cs {
		names = append(names, c.name)
	}
	return names
}

// keysFor makes n keys of one length, as a counter's key in Redis may be.
func keysFor(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("bench:per-client:{%08d}", i)
	}
	return keys
}
