package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/compile"
	"github.com/tallyman-dev/tallyman/internal/inject"
	"github.com/tallyman-dev/tallyman/internal/target"
)

// pods are those of the namespace that serve, or will.
func (r *reconciler) pods(ctx context.Context, ns Namespace, policies []v1alpha1.RateLimitPolicy) ([]compile.Pod, error) {
	if len(policies) == 0 {
		return nil, nil
	}
	var list corev1.PodList
	if err := r.List(ctx, &list, client.InNamespace(string(ns)), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list pods of namespace %q: %w", ns, err)
	}
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := r.Get(ctx, client.ObjectKey{Name: string(ns)}, namespace); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get labels of namespace %q: %w", ns, err)
	}
	var services corev1.ServiceList
	if err := r.List(ctx, &services, client.InNamespace(string(ns)), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Services of namespace %q: %w", ns, err)
	}
	var live []compile.Pod
	for i := range list.Items {
		if p := &list.Items[i]; target.IsLive(p) {
			pod := observe(p, namespace.Labels)
			pod.Bypasses = bypasses(p, services.Items)
			live = append(live, pod)
		}
	}
	return live, nil
}

// bypasses tell of the Services that lead past a pod's sidecar.
func bypasses(p *corev1.Pod, services []corev1.Service) (found []string) {
	for i := range services {
		if bypass := inject.Bypass(p, &services[i]); bypass != "" {
			found = append(found, bypass)
		}
	}
	return found
}

// observe says what there is to know of a pod in a namespace with these labels.
func observe(p *corev1.Pod, namespace map[string]string) compile.Pod {
	pod := compile.Pod{Name: p.Name, Labels: p.Labels, UID: string(p.UID), Asked: inject.IsAsked(p.Labels, namespace)}
	if pod.WithoutSidecar = !inject.HasSidecar(p); pod.WithoutSidecar {
		pod.Reason = inject.WhyMissing(p, namespace)
	} else {
		pod.Reason = inject.WhyNotReady(p)
	}
	return pod
}
