package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/compile"
)

// statusTime is how long a reconcile goes on writing statuses. A namespace has hundreds,
// and an API server may be slow: while they are written, nothing is published for this
// namespace, and with some more like it for none.
const statusTime = time.Second

// writeStatuses writes the statuses that differ, as many as there is time for, and
// tells of what has become different. pending says that an accepted policy is not
// enforced by all its pods, or that a status is still to be written.
func (r *reconciler) writeStatuses(
	ctx context.Context, policies []v1alpha1.RateLimitPolicy, verdicts compile.Verdicts, facts compile.Facts,
) (changed, pending bool, err error) {
	var errs []error
	began := time.Now()
	for i := range policies {
		status := compile.Status(&policies[i], verdicts[i], facts)
		accepted := verdicts[i].Definition != nil
		if accepted && !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionEnforced) {
			pending = true
		}
		if equality.Semantic.DeepEqual(policies[i].Status, status) {
			continue
		}
		if time.Since(began) > statusTime {
			return changed, true, errors.Join(errs...)
		}
		changed = true
		err := r.writeStatus(ctx, &policies[i], status)
		if apierrors.IsConflict(err) {
			pending = true // our cache is behind; it will have caught up by the next time
			continue
		}
		errs = append(errs, err)
	}
	return changed, pending, errors.Join(errs...)
}

// writeStatus patches one status. It insists on the version of the object that
// the status was computed from: on an older one, a transition that was already
// written and told would be written and told again.
//
// Events follow the write: what could not be written is found again, and told
// then.
func (r *reconciler) writeStatus(ctx context.Context, before *v1alpha1.RateLimitPolicy, status v1alpha1.RateLimitPolicyStatus) error {
	p := before.DeepCopy()
	p.Status = status
	err := r.Status().Patch(ctx, p, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsNotFound(err) {
		return nil // deleted in the meantime
	}
	if err != nil {
		return fmt.Errorf("write status of policy %s/%s: %w", p.Namespace, p.Name, err)
	}
	r.tell(p, before.Status.Conditions)
	return nil
}

// eventReasons names the events of transitions to a condition's reason. What a
// rollout passes through again and again has none.
var eventReasons = map[string]string{
	v1alpha1.ReasonAccepted:          "PolicyAccepted",
	v1alpha1.ReasonInvalid:           "PolicyInvalid",
	v1alpha1.ReasonTargetNotFound:    "TargetNotFound",
	v1alpha1.ReasonProgrammed:        "PolicyProgrammed",
	v1alpha1.ReasonStoreUnavailable:  "StoreUnavailable",
	v1alpha1.ReasonStoreUnauthorized: "StoreUnauthorized",
}

// tell emits an event for each condition whose reason has changed. That a policy is in
// the store says that it was accepted, too: who applies thousands gets one event of each.
func (r *reconciler) tell(p *v1alpha1.RateLimitPolicy, before []metav1.Condition) {
	for _, c := range p.Status.Conditions {
		reason, worthIt := eventReasons[c.Reason]
		if c.Reason == v1alpha1.ReasonAccepted && meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionProgrammed) {
			continue
		}
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
		r.emit(p, kind, reason, c.Message)
	}
}

// maxNote is the longest text of an event that the API server takes, in bytes.
const maxNote = 1024

func (r *reconciler) emit(about runtime.Object, kind, reason, text string) {
	if len(text) > maxNote {
		const ellipsis = "…"
		text = strings.ToValidUTF8(text[:maxNote-len(ellipsis)], "") + ellipsis
	}
	r.events.Eventf(about, nil, kind, reason, "Reconcile", "%s", text)
}
