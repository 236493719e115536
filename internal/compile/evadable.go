package compile

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
)

// setEvadable sets the condition, or removes it: it tells of what may be amiss and
// is no stage that each policy goes through.
func setEvadable(conditions *[]metav1.Condition, p *v1alpha1.RateLimitPolicy, how string) {
	if how == "" {
		meta.RemoveStatusCondition(conditions, v1alpha1.ConditionEvadable)
		return
	}
	meta.SetStatusCondition(conditions,
		condition(p, v1alpha1.ConditionEvadable, metav1.ConditionTrue, v1alpha1.ReasonClientChosenKey, how))
}
