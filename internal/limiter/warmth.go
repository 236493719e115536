package limiter

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
)

// warmth is what this process admitted lately by the shared count, for each key:
// what a backstop starts from. It is told of every decision, and so is made to cost
// one cache miss: a table of fixed size, without locks, where keys are known by
// their hash. When two places are not enough for the keys that share them, the one
// of fewer units is forgotten, whose key then has its whole allowance in an outage.
//
// It is safe for concurrent use. Units of a key that is just being forgotten may be
// counted for the one that takes its place.
type warmth struct {
	seed    maphash.Seed
	buckets []warmBucket
	mu      sync.Mutex // for windows that begin
}

const warmBuckets = 1 << 15

// warmBucket is one cache line.
type warmBucket struct {
	places [2]warmPlace
	_      [16]byte
}

// warmPlace has the units of one key in one window.
type warmPlace struct {
	hash atomic.Uint64 // 0 is nobody's
	ends atomic.Int64  // of the window, in µs since 1970
	used atomic.Int64
}

func newWarmth() *warmth {
	return &warmth{seed: maphash.MakeSeed(), buckets: make([]warmBucket, warmBuckets)}
}

func (w *warmth) bucket(key string) (*warmBucket, uint64) {
	hash := maphash.String(w.seed, key) | 1
	return &w.buckets[hash>>1%warmBuckets], hash
}

// note adds units, or takes them away if they are negative.
func (w *warmth) note(h *Hit, units, now int64) {
	b, hash := w.bucket(h.Key)
	if p := b.find(hash); p != nil && p.holds(h.Rule, now) {
		p.add(units)
	} else if units > 0 {
		w.begin(b, hash, h.Rule, units, now)
	}
}

// begin counts the first units of a key's window.
func (w *warmth) begin(b *warmBucket, hash uint64, r *Rule, units, now int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := b.find(hash)
	if p != nil && p.holds(r, now) { // another was first
		p.add(units)
		return
	}
	if p == nil {
		p = b.least(now)
		p.hash.Store(0)
	}
	p.used.Store(units)
	p.ends.Store(spanOf(r, now).ends.Load())
	p.hash.Store(hash)
}

// used is the units of a hit's key in the present window.
func (w *warmth) used(h *Hit, now int64) int64 {
	b, hash := w.bucket(h.Key)
	if p := b.find(hash); p != nil && p.holds(h.Rule, now) {
		return p.used.Load()
	}
	return 0
}

// holds says whether the window goes on at a time, as span's does.
func (p *warmPlace) holds(r *Rule, now int64) bool {
	ends, length := p.ends.Load(), r.lasts(now)
	return now < ends && ends-length-now <= max(length, minute)
}

func (b *warmBucket) find(hash uint64) *warmPlace {
	for i := range b.places {
		if p := &b.places[i]; p.hash.Load() == hash {
			return p
		}
	}
	return nil
}

// least is the place whose loss is the least.
func (b *warmBucket) least(now int64) *warmPlace {
	first, second := &b.places[0], &b.places[1]
	if now >= second.ends.Load() || now < first.ends.Load() && second.used.Load() < first.used.Load() {
		return second
	}
	return first
}

func (p *warmPlace) add(units int64) {
	if p.used.Add(units) < 0 {
		p.used.Store(0)
	}
}
