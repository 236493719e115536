package controller

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/compile"
)

// writeStatuses writes the statuses that have changed, and tells of what has
// become different. allWell says that every accepted policy is enforced.
func (r *reconciler) writeStatuses(
	ctx context.Context, policies []v1alpha1.RateLimitPolicy, verdicts compile.Verdicts, facts compile.Facts,
) (allWell bool, err error) {
	allWell = true
	var errs []error
	for i := range policies {
		status := compile.Status(&policies[i], verdicts[i], facts)
		errs = append(errs, r.writeStatus(ctx, &policies[i], status))
		if verdicts[i].Definition != nil && !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionEnforced) {
			allWell = false
		}
	}
	return allWell, errors.Join(errs...)
}

// writeStatus patches one status, if it differs. We are its only writer. Events
// follow the write: what could not be written is found again, and told then.
func (r *reconciler) writeStatus(ctx context.Context, p *v1alpha1.RateLimitPolicy, status v1alpha1.RateLimitPolicyStatus) error {
	if equality.Semantic.DeepEqual(p.Status, status) {
		return nil
	}
	before := p.DeepCopy()
	p.Status = status
	err := r.Status().Patch(ctx, p, client.MergeFrom(before))
	if apierrors.IsNotFound(err) {
		return nil // deleted in the meantime
	}
	if err != nil {
		return fmt.Errorf("write status of policy %s/%s: %w", p.Namespace, p.Name, err)
	}
	r.tell(p, before.Status.Conditions)
	return nil
}

// eventReasons names the events of transitions to a condition's reason. States
// that a rollout passes through by itself have none.
var eventReasons = map[string]string{
	v1alpha1.ReasonAccepted:          "PolicyAccepted",
	v1alpha1.ReasonInvalid:           "PolicyInvalid",
	v1alpha1.ReasonTargetNotFound:    "TargetNotFound",
	v1alpha1.ReasonProgrammed:        "PolicyProgrammed",
	v1alpha1.ReasonStoreUnavailable:  "StoreUnavailable",
	v1alpha1.ReasonStoreUnauthorized: "StoreUnauthorized",
	v1alpha1.ReasonEnforced:          "PolicyEnforced",
}

// tell emits an event for each condition whose reason has changed.
func (r *reconciler) tell(p *v1alpha1.RateLimitPolicy, before []metav1.Condition) {
	for _, c := range p.Status.Conditions {
		reason, worthIt := eventReasons[c.Reason]
		if old := meta.FindStatusCondition(before, c.Type); !worthIt || old != nil && old.Reason == c.Reason {
			continue
		}
		if c.Status == metav1.ConditionUnknown {
			continue // Programmed tells of the same failure
		}
		kind := corev1.EventTypeNormal
		if c.Status == metav1.ConditionFalse {
			kind = corev1.EventTypeWarning
		}
		r.events.Eventf(p, nil, kind, reason, "Reconcile", "%s", c.Message)
	}
}
