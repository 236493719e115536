package limiter

import (
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
)

// leaseTable finds leases by key. Who reads takes no lock; and where there are many
// keys, what a look costs is cache misses: one for the place in the table, and one
// for the lease. It is safe for concurrent use.
type leaseTable struct {
	seed maphash.Seed
	// places are heads of chains, most of which have one lease or none.
	places []atomic.Pointer[lease]
	mu     sync.Mutex // for changes, and for members
	// members are the leases in no order.
	members []*lease
}

// leasePlaces is as many as there are leases at the most.
const leasePlaces = maxLeases

func newLeaseTable() *leaseTable {
	return &leaseTable{seed: maphash.MakeSeed(), places: make([]atomic.Pointer[lease], leasePlaces)}
}

// load returns the lease of a key, or nil.
func (t *leaseTable) load(key string) *lease {
	hash := maphash.String(t.seed, key)
	for e := t.places[hash%leasePlaces].Load(); e != nil; e = e.next.Load() {
		if e.hash == hash && e.key == key {
			return e
		}
	}
	return nil
}

// add puts a lease in, unless its key has one, and returns that which the key has.
func (t *leaseTable) add(e *lease) (has *lease, added bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if has := t.load(e.key); has != nil {
		return has, false
	}
	e.hash = maphash.String(t.seed, e.key)
	place := &t.places[e.hash%leasePlaces]
	e.next.Store(place.Load())
	place.Store(e)
	e.member = len(t.members)
	t.members = append(t.members, e)
	return e, true
}

// remove takes a lease out. Who has just found it can still go on to the next.
func (t *leaseTable) remove(e *lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for at := &t.places[e.hash%leasePlaces]; at.Load() != nil; at = &at.Load().next {
		if at.Load() == e {
			at.Store(e.next.Load())
			t.leave(e)
			return
		}
	}
}

// leave takes a lease from the members; the last one takes its place.
func (t *leaseTable) leave(e *lease) {
	last := len(t.members) - 1
	t.members[e.member] = t.members[last]
	t.members[e.member].member = e.member
	t.members[last] = nil
	t.members = t.members[:last]
}

// all are the leases that there are now.
func (t *leaseTable) all() []*lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.members)
}
