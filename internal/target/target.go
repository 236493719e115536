// Package target has the kinds that policies refer to, and the pods behind them.
package target

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// Kinds has an empty object of each kind that a policy can refer to.
var Kinds = map[string]func() client.Object{
	"Deployment":  func() client.Object { return &appsv1.Deployment{} },
	"StatefulSet": func() client.Object { return &appsv1.StatefulSet{} },
	"DaemonSet":   func() client.Object { return &appsv1.DaemonSet{} },
	"Service":     func() client.Object { return &corev1.Service{} },
}

// PodSelector is the selector of a target's pods; nil when it has none.
func PodSelector(target client.Object) *policy.Selector {
	switch t := target.(type) {
	case *appsv1.Deployment:
		return Selector(t.Spec.Selector)
	case *appsv1.StatefulSet:
		return Selector(t.Spec.Selector)
	case *appsv1.DaemonSet:
		return Selector(t.Spec.Selector)
	case *corev1.Service:
		if len(t.Spec.Selector) > 0 {
			return &policy.Selector{MatchLabels: t.Spec.Selector}
		}
	}
	return nil
}

// Selector has a selector's JSON and meaning without Kubernetes' types; nil for nil.
func Selector(s *metav1.LabelSelector) *policy.Selector {
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

// IsLive says whether a pod counts among those of a target: it is neither being deleted
// nor done.
func IsLive(p *corev1.Pod) bool {
	return p.DeletionTimestamp.IsZero() && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}
