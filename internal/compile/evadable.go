package compile

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/match"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

// evadable says how a client gets around a policy by other values of what the limits
// count by; it is empty if one limit bounds clients whatever they write. A limit of 0
// does, too: it refuses all values but those that it names.
func evadable(spec *policy.Spec, compiled *match.Policy) string {
	var names []string
	for i, l := range compiled.Limits {
		if !l.IsKeyChosen() || *spec.Limits[i].Requests == 0 {
			return ""
		}
		names = append(names, l.Name)
	}
	return "All limits count by what clients write into their requests, and who writes something else has a new count: " +
		list(names, ", ", len(names)) + ". Unless something in front checks these values, " +
		"add a limit whose key is clientIP alone, or one without a key"
}

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
