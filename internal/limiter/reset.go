package limiter

import "context"

// reset resets counters where they are counted, and has this process forget what it
// knows of them. When that fails, it forgets nothing.
//
// Other processes learn of it by and by. Until then they refuse by a refusal that
// they remember, for a second at most; they spend units of a Leased limit that they
// have at hand, which the new count does not know of; and they decide a Synced limit
// by their view, until they exchange it, and charge to the new count what they
// admitted since they did so last. Their parts of a Split, and what their backstops
// have admitted, stay as they are.
func (e *Engine) reset(ctx context.Context, c *Call) error {
	if err := e.elsewhere(ctx, c); err != nil {
		return err
	}
	for i := range c.Hits {
		key := c.Hits[i].Key
		e.refusals.forget(key, e.now())
		e.leases.forget(key)
		e.syncs.forget(key)
		e.backstop.forget(key)
	}
	return nil
}

// forget lets go of a key's units at hand, without giving them back, and of what the
// shared count said.
func (l *leases) forget(key string) {
	e := l.byKey.load(key)
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.empty(l.elapsed())
	e.drought.Store(noDrought)
	e.thirst, e.shared = thirst{}, unknownShare
}

// forget drops a key's view, with what it has not exchanged, once an exchange that is
// under way has ended.
func (s *syncs) forget(key string) {
	shard := s.shard(key)
	shard.mu.RLock()
	v := shard.views[key]
	shard.mu.RUnlock()
	if v == nil {
		return
	}
	v.turn <- struct{}{}
	defer func() { <-v.turn }()
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.gone {
		s.drop(v)
	}
}

// forget makes a key's window one in which nothing was admitted yet, and nothing is
// to be charged for it.
func (b *backstop) forget(key string) {
	b.warmth.forget(key)
	if w := b.known(key); w != nil {
		w.used.Store(0)
	}
	b.debts.waive(key)
}

func (w *warmth) forget(key string) {
	b, hash := w.bucket(key)
	if p := b.find(hash); p != nil {
		p.used.Store(0)
	}
}

// waive drops what is owed for a key, but for what is being charged.
func (d *debts) waive(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.owed[key]; e != nil {
		e.due.units = 0
		d.forget(e)
	}
}
