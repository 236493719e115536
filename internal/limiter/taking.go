package limiter

import (
	"context"
	"sync"
	"time"
)

// taking is a take under way.
type taking struct {
	engine *Engine
	call   *Call
	// got is how many requests each hit was granted that is not decided by the
	// store, and by says by whom; they are given back what the call is not granted.
	got []int64
	by  []giver
	// now is the time on the engine's clock, as it was read last, and deadline that
	// at which the call's timeout ends: one is for all that a decision waits for.
	now, deadline int64
	// rest is the hits that the store decides, and places are theirs in the call.
	rest   Call
	places []int
}

// giver can be given back what it granted.
type giver interface{ giveBack(h *Hit, n int64) }

var takes = sync.Pool{New: func() any { return new(taking) }}

func (t *taking) begin(e *Engine, c *Call) {
	t.engine, t.call = e, c
	c.Granted = c.count()
	c.unasked()
	for range c.Hits {
		t.got, t.by = append(t.got, 0), append(t.by, nil)
	}
}

// unasked makes the results those of hits that nobody was asked for.
func (c *Call) unasked() {
	c.Results = c.Results[:0]
	for range c.Hits {
		c.Results = append(c.Results, Result{Allowed: true, Unknown: true})
	}
}

func (t *taking) release() {
	clear(t.by)
	clear(t.rest.Hits)
	t.engine, t.call = nil, nil
	t.got, t.by, t.places, t.rest.Hits = t.got[:0], t.by[:0], t.places[:0], t.rest.Hits[:0]
	takes.Put(t)
}

// left is what is left of the call's timeout. A step that finds none fails soon.
func (t *taking) left() time.Duration {
	return max(time.Millisecond, time.Duration(t.deadline-t.now))
}

// local decides the hits that need no store, the enforced ones or the shadows. A
// shadow that refuses stands in nobody's way.
func (t *taking) local(ctx context.Context, shadows bool) error {
	c := t.call
	for i := range c.Hits {
		h := &c.Hits[i]
		by := t.engine.of(h.Rule)
		if by == nil || h.Shadow != shadows || c.Granted == 0 {
			continue
		}
		if h.Rule.holdsSlots() {
			by = splitSlots{t.engine.splits, c.Token}
		}
		granted, r, err := by.take(ctx, h, c.Granted, t.left())
		t.now = t.engine.now()
		t.by[i] = by
		if err != nil {
			t.by[i] = t.engine.backstop
			if granted, r, err = t.engine.fail(c, h, c.Granted, err); err != nil {
				return err
			}
		}
		t.got[i], c.Results[i] = granted, r
		if !shadows {
			c.Granted = min(c.Granted, granted)
		}
	}
	return nil
}

// shared has the store decide the hits that are its to decide.
func (t *taking) shared(ctx context.Context) error {
	c := t.call
	for i := range c.Hits {
		if t.by[i] == nil && t.engine.of(c.Hits[i].Rule) == nil {
			t.rest.Hits = append(t.rest.Hits, c.Hits[i])
			t.places = append(t.places, i)
		}
	}
	if len(t.places) == 0 {
		return nil
	}
	t.rest.Op, t.rest.Count, t.rest.Token, t.rest.Timeout = Take, c.Granted, c.Token, t.left()
	sent := t.now
	err := t.engine.shared.store.Do(ctx, &t.rest)
	if err != nil {
		return t.withoutStore(err)
	}
	t.engine.shared.noteAt(&t.rest, t.engine.wall+sent/1000)
	c.Granted = t.rest.Granted
	for i, at := range t.places {
		c.Results[at] = t.rest.Results[i]
		if c.count() == 1 && !t.rest.Results[i].Allowed {
			t.engine.refusals.remember(&c.Hits[at], t.rest.Results[i], sent, t.engine.now())
		}
	}
	return nil
}

// withoutStore has the hits' failure policies decide what the store did not.
func (t *taking) withoutStore(failure error) error {
	c := t.call
	for _, at := range t.places {
		h := &c.Hits[at]
		granted, r, err := t.engine.fail(c, h, c.Granted, failure)
		if err != nil {
			return err
		}
		t.got[at], t.by[at], c.Results[at] = granted, t.engine.backstop, r
		if !h.Shadow {
			c.Granted = min(c.Granted, granted)
		}
	}
	return nil
}

// giveBackExcess gives back what was granted to more requests than the call is.
func (t *taking) giveBackExcess() {
	for i, by := range t.by {
		if excess := t.got[i] - t.call.Granted; by != nil && excess > 0 {
			by.giveBack(&t.call.Hits[i], excess)
		}
	}
}

// hold keeps the slots that were granted until they are released.
func (t *taking) hold() {
	s := &hold{store: t.engine.shared, every: maxWindow}
	s.inStore.Token, s.inStore.Timeout = t.call.Token, t.call.Timeout
	for i, h := range t.call.Hits {
		if !h.Rule.holdsSlots() {
			continue
		}
		s.every = min(s.every, h.Rule.limit.Window/3)
		if t.by[i] == nil {
			s.inStore.Hits = append(s.inStore.Hits, h)
		} else if by, ok := t.by[i].(keeper); ok && t.got[i] > 0 {
			s.elsewhere = append(s.elsewhere, kept{by, h})
		}
	}
	t.engine.holds.add(t.call.Token, s)
}
