package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/inject"
	"github.com/tallyman-dev/tallyman/internal/target"
)

// Alphabetical, so that none is missing or there twice.
//
// +kubebuilder:rbac:groups="",resources=namespaces;pods;services,verbs=get;list;watch
// +kubebuilder:rbac:groups=apps,resources=daemonsets;deployments;statefulsets,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=tallyman.dev,resources=ratelimitpolicies,verbs=get;list;watch
// +kubebuilder:rbac:groups=tallyman.dev,resources=ratelimitpolicies/status,verbs=patch

// Options are what the controller needs besides a manager.
type Options struct {
	Store Store
	// Scripts that the store's nodes are to know, by their names.
	Scripts map[string]*redis.Script
	// Resync is how often a namespace in which all is well is looked at;
	// DefaultResync if zero.
	Resync time.Duration
	// Registry of the metrics.
	Registry prometheus.Registerer
}

// concurrency is the number of namespaces that are reconciled at a time. Most of
// a reconcile is waiting for the store.
const concurrency = 8

// Setup adds the controller and its sweep to a manager, whose cache should have
// CacheOptions.
func Setup(mgr ctrl.Manager, o Options) error {
	m := newMetrics()
	for _, c := range m.collectors(o.Store, mgr.GetClient()) {
		if err := o.Registry.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	if o.Resync == 0 {
		o.Resync = DefaultResync
	}
	orphans := make(chan event.TypedGenericEvent[Namespace])
	g := &gate{}
	r := &reconciler{
		Client: mgr.GetClient(), store: o.Store, gate: g, scripts: o.Scripts,
		events: mgr.GetEventRecorder("tallyman"), metrics: m, resync: o.Resync,
		retries: workqueue.NewTypedItemExponentialFailureRateLimiter[Namespace](firstRetry, lastRetry),
	}
	if err := build(mgr, r, orphans); err != nil {
		return fmt.Errorf("build the controller: %w", err)
	}
	return mgr.Add(&sweeper{client: mgr.GetClient(), store: o.Store, gate: g, orphans: orphans})
}

func build(mgr ctrl.Manager, r *reconciler, orphans <-chan event.TypedGenericEvent[Namespace]) error {
	b := builder.TypedControllerManagedBy[Namespace](mgr).
		Named("ratelimitpolicy").
		Watches(&v1alpha1.RateLimitPolicy{}, handler.TypedEnqueueRequestsFromMapFunc(namespaceOf),
			// The beginning of a deletion that a finalizer holds up is a new generation, too.
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Pod{}, handler.TypedEnqueueRequestsFromMapFunc(r.namespaceWithPolicies),
			builder.WithPredicates(podChanged)).
		WatchesMetadata(&corev1.Namespace{}, handler.TypedEnqueueRequestsFromMapFunc(r.itselfWithPolicies),
			builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WatchesRawSource(source.TypedChannel(orphans, enqueueOrphan)).
		WithOptions(controller.TypedOptions[Namespace]{MaxConcurrentReconciles: concurrency})
	for _, newTarget := range target.Kinds {
		b = b.Watches(newTarget(), handler.TypedEnqueueRequestsFromMapFunc(r.namespaceWithPolicies),
			builder.WithPredicates(targetChanged))
	}
	return b.Complete(r)
}

func namespaceOf(_ context.Context, o client.Object) []Namespace {
	return []Namespace{Namespace(o.GetNamespace())}
}

// namespaceWithPolicies is an object's namespace, if that has any policy.
func (r *reconciler) namespaceWithPolicies(ctx context.Context, o client.Object) []Namespace {
	return r.ifPolicies(ctx, o.GetNamespace())
}

// itselfWithPolicies is a Namespace, if that has any policy.
func (r *reconciler) itselfWithPolicies(ctx context.Context, namespace client.Object) []Namespace {
	return r.ifPolicies(ctx, namespace.GetName())
}

func (r *reconciler) ifPolicies(ctx context.Context, ns string) []Namespace {
	var list v1alpha1.RateLimitPolicyList
	if err := r.List(ctx, &list, client.InNamespace(ns), client.Limit(1), client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "Could not list policies", "namespace", ns)
	} else if len(list.Items) == 0 {
		return nil
	}
	return []Namespace{Namespace(ns)}
}

var enqueueOrphan = handler.TypedEnqueueRequestsFromMapFunc(
	func(_ context.Context, ns Namespace) []Namespace { return []Namespace{ns} })

// podChanged leaves out the many updates of a pod's status.
var podChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, isPod := e.ObjectOld.(*corev1.Pod)
	after, isPodToo := e.ObjectNew.(*corev1.Pod)
	return !isPod || !isPodToo || target.IsLive(before) != target.IsLive(after) || !maps.Equal(before.Labels, after.Labels)
}}

// targetChanged leaves out the updates of a target that choose the same pods, and of a
// Service that lead to the same ports of these.
var targetChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	return !equality.Semantic.DeepEqual(target.PodSelector(e.ObjectOld), target.PodSelector(e.ObjectNew)) ||
		!equality.Semantic.DeepEqual(servicePorts(e.ObjectOld), servicePorts(e.ObjectNew))
}}

func servicePorts(o client.Object) []corev1.ServicePort {
	if s, ok := o.(*corev1.Service); ok {
		return s.Spec.Ports
	}
	return nil
}

// CacheOptions keep in memory only what the controller looks at.
func CacheOptions() cache.Options {
	strip := func(o any) (any, error) {
		switch o := o.(type) {
		case *corev1.Pod:
			stripPod(o)
		case *corev1.Service:
			// The ports tell whether it leads past sidecars.
			o.Spec, o.Status = corev1.ServiceSpec{Selector: o.Spec.Selector, Ports: o.Spec.Ports}, corev1.ServiceStatus{}
		case *appsv1.Deployment:
			o.Spec, o.Status = appsv1.DeploymentSpec{Selector: o.Spec.Selector}, appsv1.DeploymentStatus{}
		case *appsv1.StatefulSet:
			o.Spec, o.Status = appsv1.StatefulSetSpec{Selector: o.Spec.Selector}, appsv1.StatefulSetStatus{}
		case *appsv1.DaemonSet:
			o.Spec, o.Status = appsv1.DaemonSetSpec{Selector: o.Spec.Selector}, appsv1.DaemonSetStatus{}
		}
		if o, ok := o.(client.Object); ok {
			if _, isPod := o.(*corev1.Pod); !isPod {
				o.SetAnnotations(nil)
			}
			o.SetManagedFields(nil)
		}
		return o, nil
	}
	return cache.Options{DefaultTransform: strip}
}

// stripPod leaves of a pod whether it has a sidecar and before which port, and why it
// has none or that one is not ready.
func stripPod(p *corev1.Pod) {
	spec := corev1.PodSpec{InitContainers: inject.Outline(p)}
	others := func(s corev1.ContainerStatus) bool { return s.Name != inject.Container }
	p.Spec, p.Status = spec, corev1.PodStatus{
		Phase:                 p.Status.Phase,
		InitContainerStatuses: slices.DeleteFunc(p.Status.InitContainerStatuses, others),
	}
	maps.DeleteFunc(p.Annotations, func(key, _ string) bool { return key != inject.ReasonAnnotation })
}
