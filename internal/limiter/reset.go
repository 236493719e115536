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
// have admitted, stay as they are. While the store is asked, this process spends nothing
// of what it had at hand.
func (e *Engine) reset(ctx context.Context, c *Call) error {
	atHand := e.leases.setAside(c.Hits)
	if err := e.elsewhere(ctx, c); err != nil {
		e.leases.putBack(atHand)
		return err
	}
	e.leases.drop(atHand)
	for i := range c.Hits {
		key := c.Hits[i].Key
		e.refusals.forget(key, e.now())
		e.leases.forget(key)
		e.syncs.forget(key)
		e.backstop.forget(key)
	}
	return nil
}

// aside is what was at hand of a lease.
type aside struct {
	lease *lease
	units int64
	from  origin
}

// setAside takes away all that is at hand of keys, before their counts are reset. What
// comes to hand while they are may be of the new counts, and stays.
func (l *leases) setAside(hits []Hit) (all []aside) {
	for i := range hits {
		if e := l.byKey.load(hits[i].Key); e != nil {
			units, from := e.setAside()
			all = append(all, aside{e, units, from})
		}
	}
	return all
}

func (e *lease) setAside() (int64, origin) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.hand.drain(), e.hand.origin()
}

func (l *leases) putBack(all []aside) {
	for _, a := range all {
		if a.units > 0 {
			l.restore(a.lease, a.from.rule, a.units, a.from)
		}
	}
}

// drop sees to it that nothing comes to hand any more of what was set aside or spent
// before: if it comes back, it goes to the shared count, as a refund. Units that came to
// hand since are under other terms.
func (l *leases) drop(all []aside) {
	for _, a := range all {
		a.lease.mu.Lock()
		if a.lease.hand.origin() == a.from {
			a.lease.empty(l.elapsed())
		}
		a.lease.mu.Unlock()
	}
}

// forget drops what the shared count said of a key until now.
func (l *leases) forget(key string) {
	// First of all: a lease that begins meanwhile finds it.
	raise(&l.lastReset.n, int64(l.elapsed()))
	e := l.byKey.load(key)
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
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
