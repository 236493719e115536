package tallyman

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tallyman-dev/tallyman/internal/limiter"
	"github.com/tallyman-dev/tallyman/internal/match"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

// Counter names one counter of a limit.
type Counter struct {
	Policy, Limit string
	// Key has a value for each part of the limit's key, in their order, as people
	// write them: an address stands for its network, and "" for a value that
	// requests lack. It has none where the limit has no key.
	Key []string
}

// CounterState is what has become of a counter.
type CounterState struct {
	// RedisKey is the counter's name in the store. That of a Split is this process's
	// own.
	RedisKey string
	// Units that were given back; 0 for a reset, which does not tell.
	Units int64
	// Remaining units now.
	Remaining int64
}

// ErrNoCounter means that a Counter names none that requests are counted by, or one
// with which the wanted cannot be done. The error's text tells the remedy.
var ErrNoCounter = errors.New("there is no such counter")

// Reset makes all units of a counter available, as before its first request. Nothing
// is done after ErrNoCounter; after any other error it may have happened.
//
// What is shared is reset for all, and this process forgets what it knows of the
// counter at once. Others do so within a second or, of a Synced limit, its interval:
// they may remember a refusal, admit what they have at hand of a Leased limit beyond
// the new count, and charge to it what they have not exchanged of a Synced one. Parts
// of a Split, and what backstops have admitted in an outage, are each process's own,
// and reset by its own Reset only. Slots of Concurrency come free while the requests
// that held them go on.
func (l *Limiter) Reset(ctx context.Context, c Counter) (CounterState, error) {
	hit, err := l.hitOf(c)
	if err != nil {
		return CounterState{}, err
	}
	return l.change(ctx, &limiter.Call{Op: limiter.Reset, Hits: []limiter.Hit{hit}})
}

// RefundUnits gives units of a counter back, 1 at least, and at most what is counted.
// The counter may refuse for a second still or, of a Synced limit, for its interval.
// Nothing is done after ErrNoCounter; after any other error it may have happened.
func (l *Limiter) RefundUnits(ctx context.Context, c Counter, units int64) (CounterState, error) {
	hit, err := l.hitOf(c)
	switch {
	case err != nil:
		return CounterState{}, err
	case hit.Rule.Limit().Algorithm == policy.Concurrency:
		return CounterState{}, noCounter("limit %q counts requests in progress, which give back their slots when they end: "+
			"there are no units to refund, and a reset frees all slots", c.Limit)
	}
	return l.change(ctx, &limiter.Call{Op: limiter.Refund, Hits: []limiter.Hit{hit}, Count: min(max(1, units), policy.MaxInteger)})
}

// changeTimeout is how long the store may take to change a counter. Nobody's request
// waits for it.
const changeTimeout = 2 * time.Second

// change carries out a call about one counter. The end of ctx does not cut it short.
func (l *Limiter) change(ctx context.Context, c *limiter.Call) (CounterState, error) {
	c.Timeout = changeTimeout
	if err := l.engine.Do(context.WithoutCancel(ctx), c); err != nil {
		return CounterState{}, fmt.Errorf("change a counter: %w", err)
	}
	state := CounterState{RedisKey: c.Hits[0].Key, Remaining: c.Results[0].Remaining}
	if c.Op == limiter.Refund {
		state.Units = c.Granted
	}
	return state, nil
}

// hitOf is one unit of a counter that requests are counted by.
func (l *Limiter) hitOf(c Counter) (limiter.Hit, error) {
	r, err := l.current.Load().ruleOf(c)
	if err != nil {
		return limiter.Hit{}, err
	}
	o, err := r.matcher.Named(c.Key)
	switch {
	case err != nil:
		return limiter.Hit{}, noCounter("limit %q: %v", c.Limit, err)
	case o.Verdict == match.Skip:
		return limiter.Hit{}, noCounter("overrides[%d] of limit %q exempts the key, so that nothing of it is counted", o.Override, c.Limit)
	case o.Verdict == match.Deny:
		return limiter.Hit{}, noCounter("overrides[%d] of limit %q denies the key, whatever is counted: change the policy", o.Override, c.Limit)
	}
	return limiter.Hit{Rule: r.of(o), Key: limiter.CounterKey(r.keyBase, o.Key), Cost: 1}, nil
}

// ruleOf is the limit that a counter is of.
func (s *snapshot) ruleOf(c Counter) (*rule, error) {
	e := s.find(c.Policy)
	if e == nil {
		return nil, noCounter("policy %.80q is not in force here; in force are: %s", c.Policy, listed(s.names()))
	}
	var names []string
	for i := range e.rules {
		name := e.rules[i].template.Limit
		if name == c.Limit {
			return &e.rules[i], nil
		}
		names = append(names, name)
	}
	return nil, noCounter("policy %q has no limit %.80q; it has: %s", c.Policy, c.Limit, listed(names))
}

func (s *snapshot) names() []string {
	names := make([]string, len(s.policies))
	for i, e := range s.policies {
		names[i] = e.definition.Name
	}
	return names
}

// maxListed bounds the names that an error lists.
const maxListed = 20

func listed(names []string) string {
	switch {
	case len(names) == 0:
		return "none"
	case len(names) > maxListed:
		return strings.Join(names[:maxListed], ", ") + ", …"
	default:
		return strings.Join(names, ", ")
	}
}

func noCounter(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrNoCounter, fmt.Sprintf(format, args...))
}
