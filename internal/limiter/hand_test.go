package limiter

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"
)

// However units are spent while editions come and go, each is spent once, taken back
// once, and by nobody under another rule.
func TestAHandsUnitsAreSpentUnderTheirOwnTerms(t *testing.T) {
	rules := [2]*Rule{new(Rule), new(Rule)}
	var h hand
	var spent [2]atomic.Int64
	var ended atomic.Bool
	var spenders sync.WaitGroup
	for i := range 4 {
		spenders.Go(func() {
			for which := i % 2; !ended.Load(); {
				if _, told, ok := h.spend(rules[which], 1, 0); ok {
					if told.shared != int64(which) {
						t.Errorf("a unit of rule %d was told of as one of %d", which, told.shared)
					}
					spent[which].Add(1)
				} else {
					runtime.Gosched()
				}
			}
		})
	}
	var given, back [2]int64 // by the one who has the lock
	random := rand.New(rand.NewPCG(1, 1))
	which := 0
	for i := 0; i < 20_000 || spent[0].Load() == 0 || spent[1].Load() == 0; i++ {
		if i%100 == 0 {
			runtime.Gosched()
		}
		switch random.IntN(4) {
		case 0:
			back[which] += h.drain()
		case 1:
			if units, from := h.withdraw(rules[which], 5, 0); units > 0 {
				back[which] += units - 1
				back[which] += h.deposit(1, from, maxHand, 0)
			}
		default:
			back[which] += h.close()
			which = random.IntN(2)
			given[which] += 10
			h.open(terms{rule: rules[which], until: 1, standing: standing{shared: int64(which)}}, 10)
		}
	}
	back[which] += h.close()
	ended.Store(true)
	spenders.Wait()
	for i := range rules {
		if n := spent[i].Load() + back[i]; n != given[i] {
			t.Errorf("rule %d: of %d units %d were spent or came back", i, given[i], n)
		}
	}
}

func TestUnitsGoBackToTheEditionThatTheyComeFrom(t *testing.T) {
	r, other := new(Rule), new(Rule)
	open := func() *hand {
		h := &hand{}
		h.close()
		h.open(terms{rule: r, until: 10, border: 20}, 5)
		return h
	}
	for name, tt := range map[string]struct {
		meanwhile  func(h *hand)
		now        moment
		idle       int64
		left, back int64
	}{
		"the same":           {meanwhile: func(*hand) {}, idle: 10, left: 5, back: 0},
		"no place for all":   {meanwhile: func(*hand) {}, idle: 4, left: 4, back: 1},
		"another":            {meanwhile: func(h *hand) { h.close(); h.open(terms{rule: r, until: 10}, 1) }, idle: 10, left: 1, back: 2},
		"another rule":       {meanwhile: func(h *hand) { h.close(); h.open(terms{rule: other, until: 10}, 1) }, idle: 10, left: 1, back: 2},
		"their time is over": {meanwhile: func(*hand) {}, now: 10, idle: 10, left: 3, back: 2},
		"their window too":   {meanwhile: func(*hand) {}, now: 20, idle: 10, left: 3, back: 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := open()
			units, from := h.withdraw(r, 2, 0)
			diff(t, "withdrawn", units, 2)
			tt.meanwhile(h)
			diff(t, "to give back", h.deposit(2, from, tt.idle, tt.now), tt.back)
			diff(t, "left", h.left(), tt.left)
		})
	}
}

// What the comments of lease and hand say of the lines of the cache.
func TestALeaseFillsLinesOfTheCache(t *testing.T) {
	var e lease
	diff(t, "where the word is", unsafe.Offsetof(e.hand)+unsafe.Offsetof(e.hand.word), 64)
	diff(t, "size", unsafe.Sizeof(e), 4*64)
}
