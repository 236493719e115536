package controller

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/compile"
	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/target"
)

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
	newTarget, known := target.Kinds[ref.Kind]
	if !known {
		return nil // the schema has refused it; compile says so again
	}
	object := newTarget()
	err := r.Get(ctx, client.ObjectKey{Namespace: string(ns), Name: ref.Name}, object)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get %s %s/%s: %w", ref.Kind, ns, ref.Name, err)
	}
	found[ref] = target.PodSelector(object)
	return nil
}
