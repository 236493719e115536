package limiter

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// laneOf returns the lane to the node that has a job's counters.
func (r *Redis) laneOf(ctx context.Context, f *flight) (*lane, error) {
	node, err := r.cluster.MasterForKey(until{ctx, f.deadline}, f.hits[0].key)
	if err != nil {
		return nil, err
	}
	if l, known := r.lanes.Load(node); known {
		return l.(*lane), nil
	}
	l, _ := r.lanes.LoadOrStore(node, r.newLane(node, func(ctx context.Context, batch []*flight) {
		r.sendTo(ctx, node, batch)
	}))
	return l.(*lane), nil
}

// sendTo carries out a batch on a node of a cluster: one script call for each
// tag, all in one pipeline, since a script may touch the keys of one slot only.
func (r *Redis) sendTo(ctx context.Context, node *redis.Client, batch []*flight) {
	parts := byTag(batch)
	evals := make([]*evaluation, len(parts))
	cmds := make([]once, len(parts))
	pipe := node.Pipeline()
	for i, part := range parts {
		evals[i] = evaluations.Get().(*evaluation)
		evals[i].build(part, r.clock(), r.givenTime())
		cmds[i] = evalSHA(ctx, evals[i])
		_ = pipe.Process(ctx, cmds[i])
	}
	_, _ = pipe.Exec(ctx) // each command keeps its error
	for i, part := range parts {
		err := cmds[i].Err()
		if err == nil {
			err = r.read(evals[i], cmds[i])
		}
		if undone(err) {
			err = r.evaluate(ctx, r.cluster, evals[i], part)
		}
		for _, f := range part {
			f.err = err
		}
		evaluations.Put(evals[i])
	}
}

// undone says whether a node answered that it did nothing, so that the cluster
// may be asked again, by way of the client that follows redirections.
func undone(err error) bool {
	if err == nil {
		return false
	}
	if _, outside := err.(errClock); outside { //nolint:errorlint // as read returns it
		return true
	}
	return slices.ContainsFunc(
		[]string{"NOSCRIPT", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "READONLY", "LOADING"},
		func(prefix string) bool { return redis.HasErrorPrefix(err, prefix) },
	)
}

// byTag splits a batch by the tag of its counters. Each part keeps the order.
func byTag(batch []*flight) [][]*flight {
	if len(batch) == 1 {
		return [][]*flight{batch}
	}
	places := make(map[string]int, len(batch))
	var parts [][]*flight
	for _, f := range batch {
		tag := hashTag(f.hits[0].key)
		at, known := places[tag]
		if !known {
			at = len(parts)
			places[tag] = at
			parts = append(parts, nil)
		}
		parts[at] = append(parts[at], f)
	}
	return parts
}

// oneTag says whether one script call can decide the job anywhere.
func (j *job) oneTag() bool {
	first := hashTag(j.hits[0].key)
	for i := range j.hits[1:] {
		if hashTag(j.hits[i+1].key) != first {
			return false
		}
	}
	return true
}

// turn is the hits of a job that one script call can decide on a cluster, and
// their places in the job.
type turn struct {
	tag    string
	group  byte
	places []int
	// granted is how many requests it granted, and has taken.
	granted int64
}

// turns splits a job. The enforced hits come before the shadows, which are taken
// only when all of those are.
func turns(j *job) []*turn {
	var all []*turn
	for _, group := range []byte{enforced, shadow} {
		for i := range j.hits {
			if j.hits[i].group != group {
				continue
			}
			tag := hashTag(j.hits[i].key)
			at := slices.IndexFunc(all, func(t *turn) bool { return t.group == group && t.tag == tag })
			if at < 0 {
				at = len(all)
				all = append(all, &turn{tag: tag, group: group})
			}
			all[at].places = append(all[at].places, i)
		}
	}
	return all
}

// whole is a job as one turn.
func whole(j *job) *turn {
	return turnOf(j, func(*decision) bool { return true })
}

// slotsOf is those hits of a job that hold slots.
func slotsOf(j *job) *turn {
	return turnOf(j, func(d *decision) bool { return d.rule.holdsSlots() })
}

func turnOf(j *job, has func(*decision) bool) *turn {
	t := &turn{group: enforced}
	for i := range j.hits {
		if has(&j.hits[i]) {
			t.places = append(t.places, i)
		}
	}
	return t
}

// inTurn carries out a job whose hits have different tags, one script call after
// the other. What one grants and a later one does not is given back. For the
// moment in between, others may be refused units that come back; nobody gets
// more than the limit. After an error nothing is given back, since the request's
// failure policy may well admit it; but all is when the caller has left.
func (r *Redis) inTurn(ctx context.Context, f *flight) error {
	left := [...]int64{enforced: f.count, shadow: f.count}
	all := turns(&f.job)
	for _, t := range all {
		n := min(left[enforced], left[t.group])
		if !f.decides() {
			n = f.count
		}
		if err := r.carryOut(ctx, f, t, n); err != nil {
			if ctx.Err() != nil && f.takes() {
				r.giveBackTurns(f, all)
			}
			return err
		}
		left[t.group] = min(left[t.group], t.granted)
	}
	f.granted = [...]int64{enforced: left[enforced], shadow: min(left[enforced], left[shadow])}
	if f.takes() {
		r.giveBackExcess(f, all)
	}
	return nil
}

// giveBackWait is how long a request waits at most for units to be given back.
const giveBackWait = 100 * time.Millisecond

// giveBackExcess gives back what turns were granted and the job was not. The
// request waits a little for that; it goes on afterwards.
func (r *Redis) giveBackExcess(f *flight, all []*turn) {
	var parts []*flight
	var excess []int64
	for _, t := range all {
		if n := t.granted - f.granted[t.group]; n > 0 {
			parts, excess = append(parts, f.part(t)), append(excess, n)
		}
	}
	if len(parts) == 0 {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i, part := range parts {
			if err := r.giveBack(part, excess[i]); err != nil && r.hooks.GivenBack != nil {
				r.hooks.GivenBack(excess[i], err)
			}
		}
	}()
	timer := time.NewTimer(giveBackWait)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// carryOut carries out one turn for n requests, with a Peek when there are none
// left to decide for.
func (r *Redis) carryOut(ctx context.Context, f *flight, t *turn, n int64) error {
	part := f.part(t)
	part.count, part.deadline = n, f.deadline
	if n == 0 {
		part.verb, part.count = verbPeek, 1
	}
	mine, err := r.do(ctx, part)
	if !mine {
		return err
	}
	if err == nil {
		for i, at := range t.places {
			f.hits[at].state = part.stateBefore(&part.hits[i])
		}
		if n > 0 {
			t.granted = part.got(t.group)
		}
	}
	flights.Put(part)
	return err
}

// stateBefore is a counter's state when those that were counted in one step with
// the job, and came before it, had been decided.
func (j *job) stateBefore(d *decision) state {
	earlier := min(j.before, j.granted[d.group])
	if earlier == 0 {
		return d.state
	}
	return d.rule.take(d.state, d.price, earlier)
}

// part is the flight of one turn.
func (f *flight) part(t *turn) *flight {
	part := flights.Get().(*flight)
	part.verb, part.count, part.token, part.ttl = f.verb, f.count, f.token, f.ttl
	part.granted, part.before, part.hits = [shadow + 1]int64{}, 0, part.hits[:0]
	for _, at := range t.places {
		part.hits = append(part.hits, f.hits[at])
	}
	return part
}

// hashTag is the tag of a key made by CounterKey, or the whole key.
func hashTag(key string) string {
	_, tag, found := strings.Cut(key, "{")
	if !found {
		return key
	}
	return tag
}
