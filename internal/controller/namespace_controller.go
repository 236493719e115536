package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/compile"
	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/store"
)

// Namespace is what is reconciled: the policies of a namespace are published
// together, so that no reader sees half of an edit.
type Namespace string

// Store is where definitions are published. store.Store is one.
type Store interface {
	Ping(ctx context.Context) error
	LoadScripts(ctx context.Context, scripts map[string]*redis.Script) error
	Publish(ctx context.Context, namespace string, definitions []policy.Definition) (store.Publication, error)
	Enforcers(ctx context.Context, namespace string) ([]store.Enforcer, error)
	Namespaces(ctx context.Context) ([]string, error)
}

const (
	// DefaultResync is how often a namespace in which all is well is looked at:
	// a store that was flushed or replaced is whole again after that.
	DefaultResync = 15 * time.Second
	// firstRetry and lastRetry bound when a namespace in which something is amiss
	// is looked at again: pods take up an edit within a second, but those without
	// an enforcer never do, and a store may be down for long.
	firstRetry = 250 * time.Millisecond
	lastRetry  = 5 * time.Second
	// jitter keeps namespaces from coming all at once.
	jitter = 0.1
)

// reconciler reconciles namespaces. What it remembers are failures, which pods it has
// told of, and what it has compiled: all else that it writes follows from its cache
// and from what the store says.
type reconciler struct {
	client.Client
	store   Store
	scripts map[string]*redis.Script
	events  events.EventRecorder
	metrics *metrics
	resync  time.Duration
	retries workqueue.TypedRateLimiter[Namespace]
	gate    *gate
	told    told

	compilers compilers
}

var _ reconcile.TypedReconciler[Namespace] = (*reconciler)(nil)

// Reconcile publishes the policies of a namespace and writes down in their
// statuses what has become of them.
func (r *reconciler) Reconcile(ctx context.Context, ns Namespace) (ctrl.Result, error) {
	policies, err := r.policies(ctx, ns)
	if err != nil {
		return ctrl.Result{}, err
	}
	targets, err := r.targets(ctx, ns, policies)
	if err != nil {
		return ctrl.Result{}, err
	}
	verdicts := r.compilers.of(ns, len(policies)).Namespace(policies, targets)
	facts := r.publish(ctx, ns, verdicts.Definitions())
	if facts.Pods, err = r.pods(ctx, ns, policies); err != nil {
		return ctrl.Result{}, err
	}
	changed, pending, err := r.writeStatuses(ctx, policies, verdicts, facts)
	if err != nil {
		return ctrl.Result{}, err
	}
	if facts.Fault == nil { // else it is not known which pods enforce by the library
		r.tellMissing(ns, compile.WithoutSidecar(verdicts, facts))
	}
	return ctrl.Result{RequeueAfter: r.next(ns, len(policies), changed, pending || facts.Fault != nil)}, nil
}

// policies are those of the namespace that are not being deleted, as the cache has
// them: who changes one copies it before.
// Whether somebody's finalizer still holds a policy that its owner has deleted
// is not our business: its enforcement ends with the request to delete it.
func (r *reconciler) policies(ctx context.Context, ns Namespace) ([]v1alpha1.RateLimitPolicy, error) {
	var list v1alpha1.RateLimitPolicyList
	if err := r.List(ctx, &list, client.InNamespace(string(ns)), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list policies of namespace %q: %w", ns, err)
	}
	return slices.DeleteFunc(list.Items, func(p v1alpha1.RateLimitPolicy) bool {
		return !p.DeletionTimestamp.IsZero()
	}), nil
}

// next is how long a namespace can wait. While something is pending in it, it
// waits longer each time that nothing has changed. One without policies need not
// be looked at again, once the store has heard of that.
func (r *reconciler) next(ns Namespace, policies int, changed, pending bool) time.Duration {
	if changed || !pending {
		r.retries.Forget(ns)
	}
	switch {
	case pending:
		return wait.Jitter(r.retries.When(ns), jitter)
	case policies == 0:
		return 0
	default:
		return wait.Jitter(r.resync, jitter)
	}
}
