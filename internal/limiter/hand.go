package limiter

import "sync/atomic"

// hand is the units that a lease has at hand. They are spent, and all but the last two
// fields read, without a lock; all else is done under the lease's.
//
// It lies within the lease, where another pointer would be another miss of the cache
// for each decision. So it is not replaced but changed, in editions: word has the
// edition above the units that are left, so that who spends by what is written beside
// it does so only while that holds. An edition is closed, with no units, before
// anything is changed that makes units mean something else.
type hand struct {
	// rule is whose units these are; nil if there is no hand.
	rule atomic.Pointer[Rule]
	// until is when the units may not be spent any more.
	until atomicMoment
	// low has more units taken ahead of need when fewer are left.
	low atomic.Int64

	// What is above changes rarely. From here on is another line of the cache than the
	// lease's key is in, which cores would take from each other with each unit.
	word atomic.Uint64
	// See told.
	shared  atomic.Int64
	resetAt atomicMoment

	// Under the lock: border is when the window ends in which the units were counted,
	// and there is nothing to give back any more; counted is what was left when the
	// pace was last measured.
	border  moment
	counted int64
}

// unitBits is the bits of a hand's word that count units.
const unitBits = 40

// maxHand bounds the units of a hand.
const maxHand = 1<<unitBits - 1

type atomicMoment struct{ n atomic.Int64 }

func (m *atomicMoment) Load() moment   { return moment(m.n.Load()) }
func (m *atomicMoment) Store(t moment) { m.n.Store(int64(t)) }

// terms is what the units of an edition are under.
type terms struct {
	rule          *Rule
	until, border moment
	low           int64
	standing
}

func (h *hand) left() int64 { return int64(h.word.Load() & maxHand) }

func (h *hand) valid(r *Rule, now moment) bool { return h.rule.Load() == r && now < h.until.Load() }

// spend takes units of a rule, all or none, and says how many are left, and what the
// shared count said of them; of another rule, or when their time is over, none are.
func (h *hand) spend(r *Rule, units int64, now moment) (left int64, told standing, ok bool) {
	for {
		word := h.word.Load()
		if !h.valid(r, now) {
			return 0, standing{}, false
		}
		if left = int64(word & maxHand); left < units {
			return left, standing{}, false
		}
		told = h.told()
		if h.word.CompareAndSwap(word, word-uint64(units)) {
			return left - units, told, true
		}
	}
}

// told is what the shared count said last.
func (h *hand) told() standing { return standing{shared: h.shared.Load(), resetAt: h.resetAt.Load()} }

// drain takes all units. The lease is locked, as for close, open, origin, withdraw and
// deposit.
func (h *hand) drain() (units int64) {
	for {
		word := h.word.Load()
		units = int64(word & maxHand)
		if h.word.CompareAndSwap(word, word-uint64(units)) {
			return units
		}
	}
}

// close ends the edition, and takes what is left of it.
func (h *hand) close() (units int64) {
	units = h.drain()
	h.word.Add(1 << unitBits)
	return units
}

// open begins an edition with units, after close.
func (h *hand) open(t terms, units int64) {
	h.rule.Store(t.rule)
	h.until.Store(t.until)
	h.low.Store(t.low)
	h.shared.Store(t.shared)
	h.resetAt.Store(t.resetAt)
	h.border, h.counted = t.border, units
	h.word.Add(uint64(units))
}

// worth is how many of so many units can be given back.
func (h *hand) worth(units int64, now moment) int64 { return worth(units, h.border, now) }

func worth(units int64, border, now moment) int64 {
	if now >= border {
		return 0
	}
	return units
}

// origin is where units were taken from that may have to go back.
type origin struct {
	rule    *Rule
	edition uint64
	border  moment
}

func (h *hand) origin() origin {
	return origin{rule: h.rule.Load(), edition: h.word.Load() >> unitBits, border: h.border}
}

// withdraw takes units of a rule, at most so many, and says from where.
func (h *hand) withdraw(r *Rule, most int64, now moment) (units int64, from origin) {
	for h.valid(r, now) {
		units = min(most, h.left())
		if _, _, ok := h.spend(r, units, now); ok {
			return units, h.origin()
		}
	}
	return 0, origin{}
}

// deposit puts units back to where they come from, up to so many, and says how many
// are to be given back instead.
func (h *hand) deposit(units int64, to origin, idle int64, now moment) (rest int64) {
	if h.origin() != to || !h.valid(to.rule, now) {
		return worth(units, to.border, now)
	}
	n := min(units, max(0, idle-h.left()))
	h.word.Add(uint64(n))
	return units - n
}
