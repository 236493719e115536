package controller

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
)

const (
	// sweepInterval is how often orphans are looked for. They come about only
	// while no manager runs, or when the store's data is restored from a copy.
	sweepInterval = 5 * time.Minute
	// sweepRetry is when a sweep that failed is tried again.
	sweepRetry = 10 * time.Second
)

// sweeper finds namespaces that have definitions in the store and no policy, and
// hands them to the reconciler, which empties them: so it cannot get in the way
// of a policy that is created at the same time.
//
// It replaces finalizers. Those would hold up the deletion of a namespace for as
// long as the store is down.
type sweeper struct {
	client  client.Reader
	store   Store
	gate    *gate
	orphans chan<- event.TypedGenericEvent[Namespace]
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*sweeper) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (s *sweeper) Start(ctx context.Context) error {
	for {
		pause := sweepInterval
		if err := s.sweep(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).V(1).Info("Could not look for orphans in the store, will try again", "error", err.Error())
			pause = sweepRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait.Jitter(pause, jitter)):
		}
	}
}

func (s *sweeper) sweep(ctx context.Context) error {
	var namespaces []string
	err := s.gate.try(ctx, func(ctx context.Context) (err error) {
		namespaces, err = s.store.Namespaces(ctx)
		return err
	})
	if err != nil {
		return err
	}
	for _, ns := range namespaces {
		var list v1alpha1.RateLimitPolicyList
		if err := s.client.List(ctx, &list, client.InNamespace(ns), client.Limit(1), client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("list policies of namespace %q: %w", ns, err)
		}
		if len(list.Items) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case s.orphans <- event.TypedGenericEvent[Namespace]{Object: Namespace(ns)}:
		}
	}
	return nil
}
