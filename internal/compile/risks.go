package compile

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

// maxBypasses bounds the Services that a message names.
const maxBypasses = 3

// setEvadable sets or removes the condition Evadable.
func setEvadable(conditions *[]metav1.Condition, p *v1alpha1.RateLimitPolicy, how string) {
	setRisk(conditions, p, v1alpha1.ConditionEvadable, v1alpha1.ReasonClientChosenKey, how)
}

// setBypassed sets or removes the condition Bypassed. Its message names no pods, of
// which there are other ones after each rollout. A policy that is not accepted, and
// has no definition, has nothing to bypass.
func setBypassed(conditions *[]metav1.Condition, p *v1alpha1.RateLimitPolicy, d *policy.Definition, pods []Pod) {
	var bypasses []string
	for i := range pods {
		if len(pods[i].Bypasses) > 0 && d != nil && d.Selects(pods[i].Labels) {
			bypasses = append(bypasses, pods[i].Bypasses...)
		}
	}
	slices.Sort(bypasses)
	setRisk(conditions, p, v1alpha1.ConditionBypassed, v1alpha1.ReasonNumericTargetPort,
		list(slices.Compact(bypasses), "; ", maxBypasses))
}

// setRisk sets a condition, or removes it if there is nothing to say: it tells of what
// may be amiss and is no stage that each policy goes through.
func setRisk(conditions *[]metav1.Condition, p *v1alpha1.RateLimitPolicy, kind, reason, how string) {
	if how == "" {
		meta.RemoveStatusCondition(conditions, kind)
		return
	}
	meta.SetStatusCondition(conditions, condition(p, kind, metav1.ConditionTrue, reason, how))
}
