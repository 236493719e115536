package controller

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/compile"
)

// storeTimeout bounds what a reconcile waits for the store in all, so that a
// store that hangs delays other namespaces only so much.
const storeTimeout = 3 * time.Second

// publish brings the namespace's definitions and the scripts into the store, and
// asks who enforces them. A store that fails is a fact, not an error.
func (r *reconciler) publish(ctx context.Context, ns Namespace, verdicts compile.Verdicts) compile.Facts {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	var facts compile.Facts
	err := r.store.LoadScripts(ctx, r.scripts)
	if err == nil {
		err = r.publishDefinitions(ctx, ns, verdicts)
	}
	if err == nil {
		facts.Published = true
		facts.Enforcers, err = r.enforcers(ctx, ns)
	}
	r.metrics.storeAnswered(err)
	if err != nil {
		log.FromContext(ctx).Error(err, "Could not reach the store, will try again", "namespace", ns)
		facts.Fault = fault(err)
	}
	return facts
}

func (r *reconciler) publishDefinitions(ctx context.Context, ns Namespace, verdicts compile.Verdicts) error {
	publication, err := r.store.Publish(ctx, string(ns), verdicts.Definitions())
	r.metrics.published(publication.Changed, err)
	if err == nil && publication.Changed {
		log.FromContext(ctx).Info("Published policies", "namespace", ns,
			"revision", publication.Revision.String(), "policies", len(verdicts.Definitions()))
	}
	return err
}

func (r *reconciler) enforcers(ctx context.Context, ns Namespace) ([]compile.Enforcer, error) {
	alive, err := r.store.Enforcers(ctx, string(ns))
	if err != nil {
		return nil, err
	}
	enforcers := make([]compile.Enforcer, len(alive))
	for i, e := range alive {
		enforcers[i] = compile.Enforcer{Pod: e.Pod, Policies: e.Policies, Rejected: e.Rejected}
	}
	return enforcers, nil
}

// fault tells what is wrong with the store in words that do not change from one
// attempt to the next, as ports and times in an error do: the log has those.
func fault(err error) *compile.Fault {
	if redis.IsAuthError(err) || redis.IsPermissionError(err) {
		return &compile.Fault{
			Reason:  v1alpha1.ReasonStoreUnauthorized,
			Message: "the store refuses the manager's credentials or lacks a permission for them",
		}
	}
	return &compile.Fault{Reason: v1alpha1.ReasonStoreUnavailable, Message: "the store does not answer: " + cause(err)}
}

func cause(err error) string {
	var dns *net.DNSError
	var network net.Error
	switch {
	case errors.As(err, &dns):
		return "its name cannot be resolved"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return "timeout"
	default:
		return "see the manager's log"
	}
}
