package limiter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Hooks tell of what happens on the side of a decision. A nil hook is not
// called. Hooks are called on the request's way: they are quick, and safe for
// concurrent use.
type Hooks struct {
	// Corrupt is told the key of a counter that held something else than a
	// counter's state. It has started anew.
	Corrupt func(key string)
	// Sent is told of each trip to a server, and how many calls share it.
	Sent func(calls int)
	// GivenBack is told of requests that were granted when their caller had left,
	// and whose units were given back; err says that they could not be. On a
	// Cluster it is told as well, with an error, of requests that were refused and
	// whose units from some of their counters could not be given back.
	GivenBack func(requests int64, err error)
	// BreakerChanged is told that a server keeps failing, and is not asked: true
	// for the first one, false when the last one answers again.
	BreakerChanged func(open bool)
}

// RedisOptions are how a Redis counts.
type RedisOptions struct {
	Hooks Hooks
	// Now, when it is set, is the time to count with, in µs since 1970, in place
	// of Redis's clock: for tests and simulations.
	Now func() int64
}

// Redis counts in Redis, by Redis's clock. It is safe for concurrent use.
//
// Concurrent calls are combined, see lane: those to one server, or on a Redis
// Cluster those with one tag, are one script call. A call whose hits have
// different tags is carried out in turn on a Cluster, see inTurn.
//
// Nothing is repeated when the outcome is unclear, whatever the client's
// MaxRetries. A caller can leave at any time; what it is granted when it has
// left is given back. The client should have ContextTimeoutEnabled, since without
// it no deadline ends the wait for an answer.
//
// A server that keeps failing is not asked until it answers again, see guard:
// calls fail at once meanwhile. On a Cluster that is each master by itself.
type Redis struct {
	client  redis.UniversalClient
	cluster *redis.ClusterClient // nil unless it is one
	hooks   Hooks
	given   func() int64
	// ahead is how far Redis's clock is ahead of ours, in µs, about.
	ahead atomic.Int64

	only  *lane    // nil on a cluster
	lanes sync.Map // of a cluster: *redis.Client → *lane

	mu sync.Mutex
	// open is how many servers are not asked.
	open int
}

// NewRedis returns a store that uses the client, which stays the caller's to
// close.
func NewRedis(client redis.UniversalClient, o RedisOptions) *Redis {
	r := &Redis{client: client, hooks: o.Hooks, given: o.Now}
	if cluster, ok := client.(*redis.ClusterClient); ok {
		r.cluster = cluster
		return r
	}
	r.only = r.newLane(client, r.send)
	return r
}

// newLane returns a lane to a server, and guards it.
func (r *Redis) newLane(server processor, send func(context.Context, []*flight)) *lane {
	g := newGuard(func(ctx context.Context, key string) error { return probe(ctx, server, key) }, r.changed)
	return &lane{send: g.over(r.told(send)), late: r.giveBackLate, guard: g}
}

// told is send with the hook told of each batch.
func (r *Redis) told(send func(context.Context, []*flight)) func(context.Context, []*flight) {
	if r.hooks.Sent == nil {
		return send
	}
	return func(ctx context.Context, batch []*flight) {
		r.hooks.Sent(len(batch))
		send(ctx, batch)
	}
}

// probe has a server write a key beside a counter, where it is let write. The key
// is gone at once.
func probe(ctx context.Context, server processor, key string) error {
	return server.Process(ctx, once{redis.NewCmd(ctx, "set", key+"!probe", "", "px", 1)})
}

// changed is told when the circuit to a server was opened or closed.
func (r *Redis) changed(open bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.open
	if open {
		r.open++
	} else {
		r.open--
	}
	if (before == 0 || r.open == 0) && r.hooks.BreakerChanged != nil {
		r.hooks.BreakerChanged(open)
	}
}

// Close ends what goes on in the background, within the context. Nothing does
// while all servers answer.
func (r *Redis) Close(ctx context.Context) {
	if r.only != nil {
		r.only.guard.close(ctx)
	}
	r.lanes.Range(func(_, l any) bool {
		l.(*lane).guard.close(ctx)
		return true
	})
}

// Do implements Store.
func (r *Redis) Do(ctx context.Context, c *Call) error {
	f := flights.Get().(*flight)
	if err := f.prepare(c); err != nil {
		flights.Put(f)
		return err
	}
	f.setTimeout(c.timeout())
	mine, err := r.do(ctx, f)
	if !mine {
		return describe(c, err)
	}
	if err != nil {
		err = describe(c, err)
	} else {
		f.conclude(c)
	}
	flights.Put(f)
	return err
}

func describe(c *Call, err error) error {
	if err == errCircuitOpen { //nolint:errorlint // as a lane returns it; there can be many
		return err
	}
	return fmt.Errorf("ask Redis for %d counters: %w", len(c.Hits), err)
}

func (f *flight) setTimeout(timeout time.Duration) {
	f.deadline = time.Now().Add(timeout)
}

func (r *Redis) do(ctx context.Context, f *flight) (mine bool, err error) {
	switch {
	case len(f.hits) == 0:
		return true, nil
	case r.cluster == nil:
		return r.only.do(ctx, f)
	case !f.oneTag():
		return true, r.inTurn(ctx, f)
	}
	l, err := r.laneOf(ctx, f)
	if err != nil {
		return true, err
	}
	return l.do(ctx, f)
}

// send carries out a batch in one script call.
func (r *Redis) send(ctx context.Context, batch []*flight) {
	e := evaluations.Get().(*evaluation)
	err := r.evaluate(ctx, r.client, e, batch)
	for _, f := range batch {
		f.err = err
	}
	evaluations.Put(e)
}

var evaluations = sync.Pool{New: func() any {
	return &evaluation{last: map[string]int{}, rules: map[*Rule]uint16{}}
}}

// processor is a client, or a node's.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// evaluate carries out jobs in one script call. It repeats the call only when
// the server says that it did nothing: that it does not know the script, or that
// the windows of a calendar that we sent are not those of its time.
func (r *Redis) evaluate(ctx context.Context, to processor, e *evaluation, batch []*flight) error {
	err := r.try(ctx, to, e, batch)
	if _, outside := errors.AsType[errClock](err); outside {
		err = r.try(ctx, to, e, batch)
	}
	return err
}

func (r *Redis) try(ctx context.Context, to processor, e *evaluation, batch []*flight) error {
	e.build(batch, r.clock(), r.givenTime())
	cmd := evalSHA(ctx, e)
	err := to.Process(ctx, cmd)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd = eval(ctx, e)
		err = to.Process(ctx, cmd)
	}
	if err != nil {
		return err
	}
	return r.read(e, cmd)
}

func (r *Redis) read(e *evaluation, cmd once) error {
	reply, err := cmd.Text()
	if err != nil {
		return err
	}
	now, err := e.read(reply, r.hooks.Corrupt)
	if now != 0 {
		r.noteTime(now)
	}
	return err
}

func (r *Redis) givenTime() any {
	if r.given == nil {
		return ""
	}
	return r.given()
}

// clock is about what Redis's clock says, in µs. Only the windows of calendars
// are chosen by it, and Redis checks them.
func (r *Redis) clock() int64 {
	if r.given != nil {
		return r.given()
	}
	return time.Now().UnixMicro() + r.ahead.Load()
}

func (r *Redis) noteTime(now int64) { r.ahead.Store(now - time.Now().UnixMicro()) }

// giveBackLate lets go of a job whose caller has left, and gives back what it
// took.
func (r *Redis) giveBackLate(f *flight) {
	if f.err == nil {
		switch f.verb {
		case verbTake:
			all := turns(&f.job)
			for _, t := range all {
				t.granted = f.got(t.group)
			}
			r.giveBackTurns(f, all)
		case verbReserve:
			// It is settled as it was reserved.
			all := whole(&f.job)
			all.granted = f.got(enforced)
			r.giveBackTurns(f, []*turn{all})
		}
	}
	flights.Put(f)
}

// giveBackTurns gives back in the background what turns of a job were granted
// whose caller has left. It is tried once: a second try could give back what the
// first one did.
func (r *Redis) giveBackTurns(f *flight, all []*turn) {
	all = slices.DeleteFunc(all, func(t *turn) bool { return t.granted == 0 })
	if len(all) == 0 {
		return
	}
	parts := make([]*flight, len(all))
	for i, t := range all {
		parts[i] = f.part(t)
	}
	go func() {
		var errs []error
		for i, t := range all {
			errs = append(errs, r.giveBack(parts[i], t.granted))
		}
		if r.hooks.GivenBack != nil {
			r.hooks.GivenBack(all[0].granted, errors.Join(errs...))
		}
	}()
}

// giveBack undoes what n of a job's requests took, and lets go of the flight. It
// does not end with the context of the request.
func (r *Redis) giveBack(f *flight, n int64) error {
	var slots *flight
	if f.verb == verbReserve && f.holdsSlots() {
		// To settle a reservation leaves them.
		slots = f.part(slotsOf(&f.job))
		slots.verb = verbTake
	}
	f.undo(n)
	f.setTimeout(DefaultTimeout)
	mine, err := r.do(context.Background(), f)
	if mine {
		flights.Put(f)
	}
	if slots != nil {
		err = errors.Join(err, r.giveBack(slots, n))
	}
	return err
}

// undo turns a job into the one that gives back what n of its requests took.
func (j *job) undo(n int64) {
	if j.verb == verbReserve {
		// What was reserved is settled as nothing.
		j.verb = verbSettle
		for i := range j.hits {
			j.hits[i].cost, j.hits[i].price = 0, price{}
		}
		return
	}
	j.verb, j.count, j.before = verbRefund, n, 0
	if !j.holdsSlots() {
		j.token = ""
	}
}
