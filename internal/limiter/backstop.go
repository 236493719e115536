package limiter

import (
	"container/heap"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// BackstopFull means that the store did not answer, and that this pod counts as
// many keys by itself as it can: the hit's is not among them. There is room at
// RetryAfter at the earliest.
const BackstopFull Reason = "BackstopFull"

// backstop is the local limit that decides while the store does not: the failure
// policy of the same name. Each pod admits an allowance for each key and window,
// by its own clock. It is warm all along: note is told of what the pod admits while
// the store decides, so that a store that comes and goes does not hand out an
// allowance each time.
//
// The windows are those of a FixedWindow or of the calendar, whatever the
// algorithm. For Concurrency the allowance is the slots in use in this pod.
//
// The keys that take counts are bounded. Such a key is forgotten only when its
// window has ended; when there is no room, take refuses the keys that are not
// known. What note has told is kept as far as there is room: a key of which it is
// lost has all of its allowance.
//
// What take admits is charged to the store when it answers again, see debts.
//
// A backstop is safe for concurrent use.
type backstop struct {
	pods  Pods
	now   func() time.Time
	debts *debts
	most  int // keys

	// warmth is what the pod admitted by the shared count, and tallies are what it
	// admitted by itself, and slots.
	warmth *warmth

	// tallies are by key. They are read without the lock, and come, go and change
	// windows under it.
	tallies sync.Map // string → *tally
	mu      sync.Mutex
	ending  soonest
}

// maxBackstopKeys bounds the keys that a backstop counts, at some 200 bytes each
// besides the key.
const maxBackstopKeys = 1 << 17

func newBackstop(store Store, pods Pods, events Events, now func() time.Time) *backstop {
	return &backstop{pods: pods, now: now, most: maxBackstopKeys, warmth: newWarmth(), debts: newDebts(store, events, now, maxBackstopKeys)}
}

// close reports what is left to report, within the context. After that, what is
// admitted is not reported.
func (b *backstop) close(ctx context.Context) { b.debts.close(ctx) }

// tally counts one key.
type tally struct {
	key   string
	span  atomic.Pointer[span] // set under the backstop's lock
	place int                  // in the backstop's heap
}

// span is the units of a key from one time to another, in µs since 1970. Only that
// of a key of Concurrency moves its end.
type span struct {
	begins     int64
	ends, used atomic.Int64
}

// spanOf is the window of a rule that a time is in.
func spanOf(r *Rule, now int64) *span {
	length := r.limit.Window.Microseconds()
	switch {
	case r.limit.Calendar != nil:
		borders := r.limit.Calendar.Around(now)
		return newSpan(borders[1], borders[2])
	case r.holdsSlots():
		return newSpan(now, now+length)
	default:
		begins := now - now%length
		return newSpan(begins, begins+length)
	}
}

func newSpan(begins, ends int64) *span {
	w := &span{begins: begins}
	w.ends.Store(ends)
	return w
}

// holds says whether the window goes on at a time. It does so when the clock is
// behind its begin, unless by so much that no step of the clock explains it.
func (w *span) holds(now int64) bool {
	ends := w.ends.Load()
	return now < ends && w.begins-now <= max(ends-w.begins, minute)
}

// take adds as many of n costs as fit below an allowance.
func (w *span) take(cost, n, allowance int64) (granted int64) {
	for {
		used := w.used.Load()
		granted = min(n, max(0, allowance-used)/cost)
		if granted == 0 || w.used.CompareAndSwap(used, used+cost*granted) {
			return granted
		}
	}
}

// lessen takes units away, at most those that there are.
func (w *span) lessen(units int64) {
	for {
		used := w.used.Load()
		if w.used.CompareAndSwap(used, max(0, used-units)) {
			return
		}
	}
}

// units is what n requests of a hit come to, as far as it can be counted.
func (h *Hit) units(n int64) int64 { return min(product(h.Cost, n), policy.MaxInteger) }

// note counts what was admitted without the backstop's help: n requests. A
// negative n is what was given back again, and so are slots that came free. A key
// of Concurrency lasts a window from when it was noted last: with n = 0 its slots
// are renewed.
func (b *backstop) note(h *Hit, n int64) { b.noteAt(h, n, b.now().UnixMicro()) }

// noteAt is note for who knows the time already, in µs since 1970: to read the
// clock is most of what it costs.
func (b *backstop) noteAt(h *Hit, n, now int64) {
	switch {
	case h.Cost == 0:
	case !h.Rule.holdsSlots() && n < 0:
		b.warmth.note(h, -h.units(-n), now)
	case !h.Rule.holdsSlots():
		b.warmth.note(h, h.units(n), now)
	case n < 0:
		b.lessen(h, h.units(-n), now)
	default:
		if w := b.span(h, now); w != nil {
			w.used.Add(h.units(n))
		}
	}
}

// take decides n like requests for which the store did not answer, and grants as
// many as it can. The result tells how the last of them fared; what remains is of
// the allowance. A cost above the allowance is refused in every window.
func (b *backstop) take(h *Hit, n int64) (granted int64, r Result) {
	if !h.Rule.price(h.Cost).payable() {
		return 0, Result{Reason: CostExceedsLimit}
	}
	allowance, now := b.allowance(h.Rule), b.now().UnixMicro()
	warm := b.warmth.used(h, now)
	if h.Cost == 0 {
		return n, b.peek(h, allowance, warm, now)
	}
	w := b.span(h, now)
	if w == nil {
		return 0, Result{Reason: BackstopFull, RetryAfter: b.roomAfter(now)}
	}
	granted = w.take(h.Cost, n, allowance-warm)
	if granted > 0 && !h.Rule.holdsSlots() {
		b.debts.add(h, granted*h.Cost, now, w.ends.Load())
	}
	r = w.standing(allowance, warm, now)
	if granted < n {
		r.exceed(h)
	}
	return granted, r
}

// look answers as take does, and takes nothing. It creates no key, and does not see
// whether there is room for one.
func (b *backstop) look(h *Hit, n int64) (granted int64, r Result) {
	allowance, now := b.allowance(h.Rule), b.now().UnixMicro()
	r = b.peek(h, allowance, b.warmth.used(h, now), now)
	if h.Cost == 0 {
		return n, r
	}
	granted = min(n, r.Remaining/h.Cost)
	if granted < n {
		r.exceed(h)
	}
	return granted, r
}

// exceed makes of a standing the refusal of a hit for which too little is left.
func (r *Result) exceed(h *Hit) {
	r.Allowed, r.Reason, r.RetryAfter = false, LimitExceeded, r.ResetAfter
	if h.Rule.holdsSlots() {
		r.RetryAfter = micros(freeSlotHint)
	}
}

// giveBack undoes what n requests took that take granted. For the slots of
// Concurrency, it is told as well when the requests have ended.
func (b *backstop) giveBack(h *Hit, n int64) {
	units := h.units(n)
	b.lessen(h, units, b.now().UnixMicro())
	b.debts.lessen(h.Key, units)
}

// renew has the slots that a hit was granted last another window.
func (b *backstop) renew(h *Hit) { b.note(h, 0) }

func (b *backstop) lessen(h *Hit, units, now int64) {
	if w := b.known(h.Key); w != nil && w.holds(now) {
		w.lessen(units)
	}
}

// allowance is the units of a window that this pod admits by itself.
func (b *backstop) allowance(r *Rule) int64 {
	requests := r.limit.Requests
	if r.backstop > 0 {
		return min(r.backstop, requests)
	}
	live, _ := b.pods(r)
	return divide(requests, max(1, live), 0) // rounded up
}

// peek is the answer to a request that costs nothing. It creates no key.
func (b *backstop) peek(h *Hit, allowance, warm, now int64) Result {
	w := b.known(h.Key)
	if w == nil || !w.holds(now) {
		w = spanOf(h.Rule, now)
	}
	return w.standing(allowance, warm, now)
}

func (w *span) standing(allowance, warm, now int64) Result {
	r := Result{Allowed: true}
	used := w.used.Load() + warm
	r.Remaining = max(0, allowance-used)
	if used > 0 {
		r.ResetAfter = micros(max(0, w.ends.Load()-now))
	}
	return r
}

func (b *backstop) known(key string) *span {
	if t, known := b.tallies.Load(key); known {
		return t.(*tally).span.Load()
	}
	return nil
}

// span is where the units of a hit are counted now; nil when there is no room.
func (b *backstop) span(h *Hit, now int64) *span {
	slots := h.Rule.holdsSlots()
	if !slots {
		if w := b.known(h.Key); w != nil && w.holds(now) {
			return w
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.tally(h, now)
	if t == nil {
		return nil
	}
	w := t.span.Load()
	switch {
	case !w.holds(now):
		w = spanOf(h.Rule, now)
		t.span.Store(w)
	case slots:
		w.ends.Store(now + h.Rule.limit.Window.Microseconds())
	}
	heap.Fix(&b.ending, t.place)
	return w
}

// tally returns that of a hit's key. A new one takes the room of two whose
// windows have ended, so that memory follows the keys in use.
func (b *backstop) tally(h *Hit, now int64) *tally {
	if t, known := b.tallies.Load(h.Key); known {
		return t.(*tally)
	}
	for range 2 {
		if len(b.ending) > 0 && !b.ending[0].span.Load().holds(now) {
			b.tallies.Delete(heap.Pop(&b.ending).(*tally).key)
		}
	}
	if len(b.ending) >= b.most {
		return nil
	}
	t := &tally{key: h.Key}
	t.span.Store(spanOf(h.Rule, now))
	b.tallies.Store(h.Key, t)
	heap.Push(&b.ending, t)
	return t
}

// roomAfter is when the first window ends, at the earliest.
func (b *backstop) roomAfter(now int64) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return micros(max(1, b.ending[0].span.Load().ends.Load()-now))
}

// soonest is a heap of tallies with the one whose window ends first at its head.
type soonest []*tally

func (s soonest) Len() int { return len(s) }
func (s soonest) Less(i, j int) bool {
	return s[i].span.Load().ends.Load() < s[j].span.Load().ends.Load()
}

func (s soonest) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].place, s[j].place = i, j
}

func (s *soonest) Push(x any) {
	t := x.(*tally)
	t.place = len(*s)
	*s = append(*s, t)
}

func (s *soonest) Pop() any {
	old := *s
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*s = old[:len(old)-1]
	return last
}
