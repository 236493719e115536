package policy

import "slices"

// Selector chooses pods by label, with the JSON and the meaning of Kubernetes'
// LabelSelector. An empty selector chooses every pod of the namespace.
type Selector struct {
	MatchLabels      map[string]string `json:"matchLabels,omitempty"`
	MatchExpressions []Requirement     `json:"matchExpressions,omitempty"`
}

// Requirement is one condition on a label.
type Requirement struct {
	Key      string           `json:"key"`
	Operator SelectorOperator `json:"operator"`
	Values   []string         `json:"values,omitempty"`
}

// SelectorOperator relates a label to values.
type SelectorOperator string

const (
	OpIn           SelectorOperator = "In"
	OpNotIn        SelectorOperator = "NotIn"
	OpExists       SelectorOperator = "Exists"
	OpDoesNotExist SelectorOperator = "DoesNotExist"
)

// Matches says whether a pod with these labels is chosen.
func (s Selector) Matches(labels map[string]string) bool {
	for key, want := range s.MatchLabels {
		if have, ok := labels[key]; !ok || have != want {
			return false
		}
	}
	for _, r := range s.MatchExpressions {
		if !r.matches(labels) {
			return false
		}
	}
	return true
}

func (r Requirement) matches(labels map[string]string) bool {
	value, present := labels[r.Key]
	switch r.Operator {
	case OpIn:
		return present && slices.Contains(r.Values, value)
	case OpNotIn:
		return !present || !slices.Contains(r.Values, value)
	case OpExists:
		return present
	case OpDoesNotExist:
		return !present
	default:
		return false
	}
}
