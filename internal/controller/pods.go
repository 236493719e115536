package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/compile"
	"github.com/tallyman-dev/tallyman/internal/inject"
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
	var live []compile.Pod
	for i := range list.Items {
		if p := &list.Items[i]; isLive(p) {
			live = append(live, compile.Pod{
				Name: p.Name, Labels: p.Labels,
				WithoutSidecar: !inject.HasSidecar(p), Reason: p.Annotations[inject.ReasonAnnotation],
			})
		}
	}
	return live, nil
}

func isLive(p *corev1.Pod) bool {
	return p.DeletionTimestamp.IsZero() && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}
