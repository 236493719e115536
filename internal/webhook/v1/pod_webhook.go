package v1

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/tallyman-dev/tallyman/internal/inject"
)

// Two entries, so that the API server asks about no pod that nobody has opted
// in: one for namespaces that are, without the pods that say something of their
// own, and one for pods that do. kube-system is left out by its name, and our
// own namespace by its label (config/manager/namespace.yaml): a cluster must be
// able to start without us. docs/adr/0010 has the reasons for the rest.
//
// +kubebuilder:webhookconfiguration:mutating=true,name=injector
// +kubebuilder:webhook:name=namespace.inject.tallyman.dev,path=/mutate--v1-pod,mutating=true,failurePolicy=fail,timeoutSeconds=5,sideEffects=NoneOnDryRun,reinvocationPolicy=Never,matchPolicy=Equivalent,groups="",resources=pods,verbs=create,versions=v1,admissionReviewVersions=v1,serviceName=webhook,serviceNamespace=system,patch=`{"namespaceSelector":{"matchExpressions":[{"key":"kubernetes.io/metadata.name","operator":"NotIn","values":["kube-system"]},{"key":"tallyman.dev/injection","operator":"In","values":["enabled"]}]},"objectSelector":{"matchExpressions":[{"key":"tallyman.dev/inject","operator":"DoesNotExist"}]}}`
// +kubebuilder:webhook:name=pod.inject.tallyman.dev,path=/mutate--v1-pod,mutating=true,failurePolicy=fail,timeoutSeconds=5,sideEffects=NoneOnDryRun,reinvocationPolicy=Never,matchPolicy=Equivalent,groups="",resources=pods,verbs=create,versions=v1,admissionReviewVersions=v1,serviceName=webhook,serviceNamespace=system,patch=`{"namespaceSelector":{"matchExpressions":[{"key":"kubernetes.io/metadata.name","operator":"NotIn","values":["kube-system"]},{"key":"tallyman.dev/injection","operator":"NotIn","values":["disabled"]}]},"objectSelector":{"matchExpressions":[{"key":"tallyman.dev/inject","operator":"Exists"},{"key":"tallyman.dev/inject","operator":"NotIn","values":["false"]}]}}`

// podPath is where the API server asks.
const podPath = "/mutate--v1-pod"

// servicesTimeout bounds the wait for the cache of Services, which matters while
// it fills up: a warning is not worth the API server's patience.
const servicesTimeout = time.Second

// Setup adds the webhook to a manager's server, and its metrics to a registry.
func Setup(mgr ctrl.Manager, c inject.Config, registry prometheus.Registerer) error {
	d := &podDefaulter{
		config: c, reader: mgr.GetClient(), events: mgr.GetEventRecorder("tallyman"), pods: newPods(),
	}
	if err := registry.Register(d.pods); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	// Replicas that do not lead answer too, and have no other use for Services.
	if _, err := mgr.GetCache().GetInformer(context.Background(), &corev1.Service{}); err != nil {
		return fmt.Errorf("watch Services: %w", err)
	}
	hook := admission.WithDefaulter(mgr.GetScheme(), d)
	hook.Handler = warner{hook.Handler}
	mgr.GetWebhookServer().Register(podPath, hook)
	return nil
}

// newPods counts what becomes of pods.
func newPods() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tallyman_injections_total",
		Help: "Pods that the API server asked about, by what became of them: injected, unchanged, skipped or denied.",
	}, []string{"result"})
}

// podDefaulter puts sidecars into pods.
type podDefaulter struct {
	config inject.Config
	reader client.Reader
	events events.EventRecorder
	pods   *prometheus.CounterVec
}

var _ admission.Defaulter[*corev1.Pod] = (*podDefaulter)(nil)

// Default implements admission.Defaulter. Whoever labelled the pod itself is
// there to read a refusal; a pod of a namespace that is opted in must not be kept
// from running by a feature that its author may not know of.
func (d *podDefaulter) Default(ctx context.Context, pod *corev1.Pod) error {
	injected, err := inject.Inject(pod, d.config)
	switch {
	case err != nil && inject.AsksItself(pod):
		d.pods.WithLabelValues("denied").Inc()
		return err
	case err != nil:
		d.pods.WithLabelValues("skipped").Inc()
		warn(ctx, "the pod gets no Tallyman sidecar: "+err.Error())
		*pod = *inject.Skip(pod, err)
		return nil
	case injected.Port == nil:
		d.pods.WithLabelValues("unchanged").Inc()
		return nil
	}
	d.pods.WithLabelValues("injected").Inc()
	warn(ctx, injected.Warnings...)
	d.tellBypasses(ctx, injected.Pod)
	*pod = *injected.Pod
	return nil
}

// tellBypasses tells of Services that lead past the sidecar: whoever creates the
// pod, who is rarely a person, and whoever looks at the Service.
func (d *podDefaulter) tellBypasses(ctx context.Context, pod *corev1.Pod) {
	request, err := admission.RequestFromContext(ctx)
	if err != nil {
		log.FromContext(ctx).Error(err, "Could not tell the pod's namespace")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, servicesTimeout)
	defer cancel()
	var services corev1.ServiceList
	if err := d.reader.List(ctx, &services, client.InNamespace(request.Namespace)); err != nil {
		log.FromContext(ctx).Error(err, "Could not look for Services that lead past the sidecar")
		return
	}
	for i := range services.Items {
		service := &services.Items[i]
		bypass := inject.Bypass(pod, service)
		if bypass == "" {
			continue
		}
		warn(ctx, bypass)
		if request.DryRun == nil || !*request.DryRun {
			d.events.Eventf(service, nil, corev1.EventTypeWarning, "SidecarBypassed", "Inject", "%s", bypass)
		}
	}
}

// warner answers with what is told by warn, for which a Defaulter has no result.
type warner struct{ admission.Handler }

// Handle implements admission.Handler.
func (w warner) Handle(ctx context.Context, r admission.Request) admission.Response {
	var warnings []string
	response := w.Handler.Handle(context.WithValue(ctx, warningsKey{}, &warnings), r)
	return response.WithWarnings(warnings...)
}

type warningsKey struct{}

func warn(ctx context.Context, text ...string) {
	if warnings, ok := ctx.Value(warningsKey{}).(*[]string); ok {
		*warnings = append(*warnings, text...)
	}
}
