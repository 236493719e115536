package tallyman

import (
	"context"
	"errors"
	"time"

	"github.com/tallyman-dev/tallyman/internal/limiter"
)

// newEngine has the store's counts decide, and what the limits' distributions and
// failure policies put before them.
func (l *Limiter) newEngine(store limiter.Store) *limiter.Engine {
	return limiter.NewEngine(observed{store, l}, limiter.EngineOptions{
		Pods: l.pods,
		Events: limiter.Events{
			Overshoot:  l.overshot,
			Unreported: l.observer.UnitsUnreported,
		},
	})
}

// pods is how many pods share a rule's limit, and which of them this is. With a
// policy file nobody knows of others.
func (l *Limiter) pods(r *limiter.Rule) (live, place int) {
	owner := l.current.Load().owner(r)
	if owner == nil || l.follower == nil {
		return 1, 0
	}
	return l.follower.share(owner.template.Policy)
}

func (l *Limiter) overshot(r *limiter.Rule, units int64) {
	if owner := l.current.Load().owner(r); owner != nil {
		l.observer.Overshot(owner.template.Policy, owner.template.Limit, units)
	}
}

// observed is the store, with the observer told of its calls.
type observed struct {
	limiter.Store
	l *Limiter
}

// Do implements limiter.Store.
func (o observed) Do(ctx context.Context, c *limiter.Call) error {
	began := time.Now()
	err := o.Store.Do(ctx, c)
	if !errors.Is(err, limiter.ErrInvalid) {
		o.l.observer.StoreCalled(ctx, time.Since(began), err)
		o.l.noteStore(err)
	}
	return err
}

// noteStore logs when the store stops to decide, and when it decides again.
func (l *Limiter) noteStore(err error) {
	switch {
	case err != nil && !l.storeFails.Swap(true):
		l.logger.Warn("The store does not decide requests; the limits' failurePolicy does", "error", err)
	case err != nil:
		l.logger.Debug("The store did not decide a request", "error", err)
	case l.storeFails.Load() && l.storeFails.Swap(false):
		l.logger.Info("The store decides requests again")
	}
}
