package limiter

import (
	"context"
	"sync"
	"time"
)

// holds renews the slots of Concurrency that are held in this process until they
// are released. A slot that is not renewed ends by itself, as those of a process
// that crashed do. It is safe for concurrent use.
type holds struct {
	tokens *tokenSource

	mu      sync.Mutex
	held    map[string]*hold
	renewer *time.Timer // nil while nothing is held
	due     time.Time   // when it runs
	closed  bool
	work    sync.WaitGroup
}

// hold is the slots of one token.
type hold struct {
	store     Store
	inStore   Call // of the hits whose slots the store has
	elsewhere []kept
	// every is how often it is renewed: three times in the life of a slot, so that
	// one renewal may be lost.
	every time.Duration
	next  time.Time
}

// kept is a hit whose slots somebody else has.
type kept struct {
	by  keeper
	hit Hit
}

// keeper has slots in this process.
type keeper interface {
	renew(h *Hit)
	giveBack(h *Hit, n int64)
}

// renew is tried once: there is another renewal before the slots end.
func (s *hold) renew(ctx context.Context) {
	s.tell(ctx, Renew)
	for i := range s.elsewhere {
		s.elsewhere[i].by.renew(&s.elsewhere[i].hit)
	}
}

// release ends the slots; those that the store cannot be told of end by
// themselves.
func (s *hold) release(ctx context.Context) {
	s.tell(ctx, Refund)
	for i := range s.elsewhere {
		s.elsewhere[i].by.giveBack(&s.elsewhere[i].hit, 1)
	}
}

func (s *hold) tell(ctx context.Context, op Op) {
	if len(s.inStore.Hits) > 0 {
		c := s.inStore
		c.Op = op
		_ = s.store.Do(ctx, &c)
	}
}

func newHolds() *holds { return &holds{tokens: newTokenSource(), held: map[string]*hold{}} }

// add keeps a token's slots.
func (h *holds) add(token string, s *hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return // they end by themselves
	}
	s.next = time.Now().Add(s.every)
	h.held[token] = s
	h.schedule(s.next)
}

// schedule has the renewer run at a time or earlier. The holds are locked.
func (h *holds) schedule(at time.Time) {
	switch {
	case h.renewer == nil:
		h.due = at
		h.renewer = time.AfterFunc(time.Until(at), h.renewAll)
	case len(h.held) == 1, // the others that it was set for are gone
		at.Before(h.due):
		h.runAt(at)
	}
}

func (h *holds) runAt(at time.Time) {
	h.due = at
	h.renewer.Reset(time.Until(at))
}

// renewAll renews what is due, and sets itself for the next.
func (h *holds) renewAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || len(h.held) == 0 {
		h.renewer = nil
		return
	}
	now := time.Now()
	earliest := now.Add(time.Hour)
	for _, s := range h.held {
		if !s.next.After(now) {
			s.next = now.Add(s.every)
			h.work.Go(func() { s.renew(context.Background()) })
		}
		if s.next.Before(earliest) {
			earliest = s.next
		}
	}
	h.runAt(earliest)
}

// release ends a token's slots. It does nothing for one that is not held.
func (h *holds) release(ctx context.Context, token string) {
	h.mu.Lock()
	s := h.held[token]
	delete(h.held, token)
	h.mu.Unlock()
	if s != nil {
		s.release(ctx)
	}
}

// close ends what is held still.
func (h *holds) close(ctx context.Context) {
	h.mu.Lock()
	h.closed = true
	if h.renewer != nil {
		h.renewer.Stop()
	}
	left := h.held
	h.held = map[string]*hold{}
	h.mu.Unlock()
	for _, s := range left {
		h.work.Go(func() { s.release(ctx) })
	}
	h.work.Wait()
}
