package limiter

import (
	"context"
	"slices"
	"time"
)

// giveBackTimeout bounds a give-back, which does not end with the context of
// the request that it belongs to.
const giveBackTimeout = 100 * time.Millisecond

// turn is the hits of a call that one script call can decide on a Redis Cluster,
// where a script may touch the keys of one slot only: those of one hash tag.
type turn struct {
	group int
	tag   string

	indexes   []int
	hits      []Hit
	decisions []decision
}

func (t *turn) add(index int, h Hit, d decision) {
	t.indexes = append(t.indexes, index)
	t.hits = append(t.hits, h)
	t.decisions = append(t.decisions, d)
}

func (t *turn) fits() bool {
	return !slices.ContainsFunc(t.decisions, func(d decision) bool { return !d.fits })
}

// turns splits a call. The enforced hits come before the shadows, which are
// taken only when all of those are.
func turns(hits []Hit, decisions []decision) []*turn {
	var all []*turn
	for _, group := range []int{enforced, shadow} {
		for i, h := range hits {
			if h.group() != group {
				continue
			}
			tag := hashTag(h.Key)
			at := slices.IndexFunc(all, func(t *turn) bool { return t.group == group && t.tag == tag })
			if at < 0 {
				at = len(all)
				all = append(all, &turn{group: group, tag: tag})
			}
			all[at].add(i, h, decisions[i])
		}
	}
	return all
}

// oneTag tells whether one script call can decide the hits anywhere.
func oneTag(hits []Hit) bool {
	first := hashTag(hits[0].Key)
	return !slices.ContainsFunc(hits, func(h Hit) bool { return hashTag(h.Key) != first })
}

// takeInTurn decides hits with different tags, one script call after the other.
// When one refuses, what the ones before it took is given back, and the rest is
// only looked at. For the moment in between, others may be refused units that
// come back; nobody gets more than the limit. After an error nothing is given
// back: the request's failure policy may well admit it.
func (r *Redis) takeInTurn(ctx context.Context, hits []Hit, decisions []decision, v verb) error {
	var taken []*turn
	for _, t := range turns(hits, decisions) {
		if err := r.run(ctx, t.hits, t.decisions, v); err != nil {
			return err
		}
		for i, at := range t.indexes {
			decisions[at] = t.decisions[i]
		}
		switch {
		case v != verbTake:
		case t.fits():
			taken = append(taken, t)
		default:
			v = verbPeek
			r.giveBack(ctx, taken, t.group)
		}
	}
	return nil
}

// giveBack undoes the turns of a group. It is tried once: a second try could
// give back what the first one did.
func (r *Redis) giveBack(ctx context.Context, taken []*turn, group int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	for _, t := range taken {
		if t.group != group {
			continue
		}
		err := r.run(ctx, t.hits, slices.Clone(t.decisions), verbReturn)
		if err != nil && r.hooks.NotGivenBack != nil {
			r.hooks.NotGivenBack(t.hits, err)
		}
	}
}
