package controller

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

const (
	// storeTimeout bounds what a reconcile waits for the store in all.
	storeTimeout = 2 * time.Second
	// closedFor is how long nobody tries a store that hangs.
	closedFor = time.Second
)

// gate keeps a store that hangs from holding up every namespace. After a timeout
// one attempt at a time finds out whether the store is back; who comes in between
// gets the last attempt's error at once. So the statuses of a thousand
// namespaces tell of an outage after seconds, and not after a thousand timeouts.
//
// It logs what changes, not every failure. It is safe for concurrent use.
type gate struct {
	mu     sync.Mutex
	hung   error     // of the last attempt, if that timed out
	until  time.Time // when the next attempt may be made, while hung is set
	logged string    // the failure that the log has; "" for none
}

// try makes an attempt, if the gate is open.
func (g *gate) try(ctx context.Context, attempt func(context.Context) error) error {
	if err := g.enter(time.Now()); err != nil {
		return err
	}
	timeout, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err := attempt(timeout)
	if ctx.Err() == nil { // else we are shutting down, which says nothing about the store
		g.leave(time.Now(), err, logr.FromContextOrDiscard(ctx))
	}
	return err
}

func (g *gate) enter(now time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.hung == nil {
		return nil
	}
	if now.Before(g.until) {
		return g.hung
	}
	g.until = now.Add(storeTimeout) // this attempt is the only one
	return nil
}

func (g *gate) leave(now time.Time, err error, log logr.Logger) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hung = nil
	if isTimeout(err) {
		g.hung, g.until = err, now.Add(closedFor)
	}
	switch failure := describe(err); {
	case failure == g.logged:
		return
	case err != nil:
		log.Error(err, "The store failed, will try again until it answers")
		g.logged = failure
	default:
		log.Info("The store answers again")
		g.logged = ""
	}
}

// describe is the same for the same kind of failure, and empty for none.
func describe(err error) string {
	if err == nil {
		return ""
	}
	return fault(err).Message
}

func isTimeout(err error) bool {
	network, ok := errors.AsType[net.Error](err)
	return errors.Is(err, context.DeadlineExceeded) || ok && network.Timeout()
}
