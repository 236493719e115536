package limiter

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// refusals remembers which keys the store refused, and answers for it until the
// same hit could be admitted again: a flood of refused requests does not reach
// the store. It is safe for concurrent use; lookup takes no lock and allocates
// nothing.
//
// It is a cache: what it has forgotten is asked again. Memory is bounded, since
// the refusals of many keys share few places, the newer taking that of the older.
//
// A refusal belongs to the rule that was asked, so that it is forgotten when a
// policy changes: the rules are new then.
//
// Its times are nanoseconds of a monotonic clock, such as time.Since gives.
type refusals struct {
	seed    maphash.Seed
	buckets [refusalBuckets]refusalBucket
	// last is when the last of the refusals ends. While nobody is refused, no bucket
	// is looked at, which would be a cache miss for each request.
	last atomic.Int64
}

const (
	// refusalBuckets takes 800 kB. Of 1,000 keys that are flooded, three meet in a
	// bucket of two, and drive each other out, with a chance of 1 in 6.
	refusalBuckets = 1 << 15
	// longestRefusal bounds how long a refusal is answered from memory: units come
	// back unexpectedly when another pod refunds, or Redis is wiped.
	longestRefusal = time.Second
	// shortestRefusal is below what a call to the store takes or so, where there
	// is nothing to be gained.
	shortestRefusal = time.Millisecond
)

// refusalBucket holds the refusals of the keys with one hash.
type refusalBucket struct {
	places [2]atomic.Pointer[refusedHit]
	// forgotten is a time: what the store was asked before it, is not known any
	// more.
	forgotten atomic.Int64
}

// refusedHit is immutable.
type refusedHit struct {
	rule *Rule
	key  string
	cost int64
	// sent is when the store was asked, until is when it has to be asked again.
	sent, until int64
	// retryAt and resetAt are when the times of the result are over.
	retryAt, resetAt int64
	remaining        int64
}

func newRefusals() *refusals {
	r := &refusals{seed: maphash.MakeSeed()}
	for i := range r.buckets {
		r.buckets[i].forgotten.Store(-1 << 63)
	}
	r.last.Store(-1 << 63)
	return r
}

func (r *refusals) bucket(key string) *refusalBucket {
	return &r.buckets[maphash.String(r.seed, key)%refusalBuckets]
}

// remember notes what the store answered to a hit: sent is when it was asked,
// now when the answer was there. All answers may be told; only those are noted
// with which a later hit can be refused.
//
// The store decided between sent and now. Counted from sent, no hit is refused
// that could have been admitted; counted from now, no client is told a time that
// is too early.
func (r *refusals) remember(h *Hit, result Result, sent, now int64) {
	if result.Allowed || result.Reason != LimitExceeded || h.Rule.holdsSlots() {
		return
	}
	until := sent + int64(min(result.RetryAfter, longestRefusal))
	if until-now < int64(shortestRefusal) {
		return
	}
	r.bucket(h.Key).put(&refusedHit{
		rule: h.Rule, key: h.Key, cost: h.Cost, sent: sent, until: until,
		retryAt: now + int64(result.RetryAfter), resetAt: now + int64(result.ResetAfter),
		remaining: result.Remaining,
	}, now)
	raise(&r.last, until)
}

// put takes the place of the same key, else of what ends first. Of two that do so
// at the same time one may be lost.
func (b *refusalBucket) put(e *refusedHit, now int64) {
	at, earliest := 0, int64(1<<63-1)
	for i := range b.places {
		old := b.places[i].Load()
		if old == nil || old.key == e.key || old.until <= now {
			at = i
			break
		}
		if old.until < earliest {
			at, earliest = i, old.until
		}
	}
	b.places[at].Store(e)
}

// lookup answers a hit that would be refused. A larger cost than the one that was
// refused is refused too; its RetryAfter is, unless for a TokenBucket, the time
// until the counter is at its full limit: later than need be, but never too early.
func (r *refusals) lookup(h *Hit, now int64) (Result, bool) {
	if now >= r.last.Load() {
		return Result{}, false
	}
	b := r.bucket(h.Key)
	for i := range b.places {
		e := b.places[i].Load()
		if e == nil || e.rule != h.Rule || e.key != h.Key {
			continue
		}
		if now >= e.until || h.Cost < e.cost || e.sent <= b.forgotten.Load() {
			return Result{}, false
		}
		return e.result(h, now)
	}
	return Result{}, false
}

func (e *refusedHit) result(h *Hit, now int64) (Result, bool) {
	answer := Result{
		Reason:     LimitExceeded,
		Remaining:  e.remaining,
		RetryAfter: time.Duration(e.retryAt - now),
		ResetAfter: time.Duration(e.resetAt - now),
	}
	if h.Cost > e.cost {
		if !h.Rule.price(h.Cost).payable() {
			return Result{}, false // another reason
		}
		if b, bucket := h.Rule.algorithm.(*tokenBucket); bucket {
			answer.RetryAfter += micros(ceil(b.span(h.Cost - e.cost)))
		} else {
			answer.RetryAfter = max(answer.RetryAfter, answer.ResetAfter)
		}
	}
	return answer, true
}

// forget is told that units of a key have been given back by now. What the store
// was asked before that says nothing any more.
func (r *refusals) forget(key string, now int64) { raise(&r.bucket(key).forgotten, now) }

// raise makes a time that late, unless it is later.
func raise(at *atomic.Int64, to int64) {
	for {
		was := at.Load()
		if was >= to || at.CompareAndSwap(was, to) {
			return
		}
	}
}
