package controller

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/compile"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

// targetKinds are the kinds that a policy can refer to.
var targetKinds = map[string]func() client.Object{
	"Deployment":  func() client.Object { return &appsv1.Deployment{} },
	"StatefulSet": func() client.Object { return &appsv1.StatefulSet{} },
	"DaemonSet":   func() client.Object { return &appsv1.DaemonSet{} },
	"Service":     func() client.Object { return &corev1.Service{} },
}

// podSelector is the selector of a target's pods; nil when it has none.
func podSelector(target client.Object) *policy.Selector {
	switch t := target.(type) {
	case *appsv1.Deployment:
		return selectorOf(t.Spec.Selector)
	case *appsv1.StatefulSet:
		return selectorOf(t.Spec.Selector)
	case *appsv1.DaemonSet:
		return selectorOf(t.Spec.Selector)
	case *corev1.Service:
		if len(t.Spec.Selector) > 0 {
			return &policy.Selector{MatchLabels: t.Spec.Selector}
		}
	}
	return nil
}

// selectorOf has the selector's JSON and meaning without Kubernetes' types.
func selectorOf(s *metav1.LabelSelector) *policy.Selector {
	if s == nil {
		return nil
	}
	out := &policy.Selector{MatchLabels: s.MatchLabels}
	for _, e := range s.MatchExpressions {
		out.MatchExpressions = append(out.MatchExpressions, policy.Requirement{
			Key: e.Key, Operator: policy.SelectorOperator(e.Operator), Values: e.Values,
		})
	}
	return out
}

// targets finds the objects that the policies refer to. One that does not exist
// is left out.
func (r *reconciler) targets(ctx context.Context, ns Namespace, policies []v1alpha1.RateLimitPolicy) (compile.Targets, error) {
	found := compile.Targets{}
	for i := range policies {
		for _, ref := range policies[i].Spec.TargetRefs {
			if err := r.target(ctx, ns, policy.TargetRef{Kind: ref.Kind, Name: ref.Name}, found); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

func (r *reconciler) target(ctx context.Context, ns Namespace, ref policy.TargetRef, found compile.Targets) error {
	newTarget, known := targetKinds[ref.Kind]
	if !known {
		return nil // the schema has refused it; compile says so again
	}
	target := newTarget()
	err := r.Get(ctx, client.ObjectKey{Namespace: string(ns), Name: ref.Name}, target)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get %s %s/%s: %w", ref.Kind, ns, ref.Name, err)
	}
	found[ref] = podSelector(target)
	return nil
}
