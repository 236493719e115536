package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
)

// Source is a policy as the API server has it.
type Source struct {
	Policy *v1alpha1.RateLimitPolicy
	// SelectedBy are those of its targets that select the pod, such as "Deployment
	// orders", or all of them where that is not known; none for a selector.
	SelectedBy []string
	// Unsure says that a target could not be read, so that it is not known whether
	// the policy selects the pod.
	Unsure bool
}

// origin is what selects the pod.
func (s *Source) origin() string {
	if selector := s.Policy.Spec.Selector; selector != nil {
		return Selector(selector)
	}
	return strings.Join(s.SelectedBy, ", ")
}

// limit of a name; nil if there is none.
func (s *Source) limit(name string) *v1alpha1.Limit {
	for i := range s.Policy.Spec.Limits {
		if l := &s.Policy.Spec.Limits[i]; l.Name == name {
			return l
		}
	}
	return nil
}

// Selector is a selector of labels for people, as kubectl's --selector has it.
func Selector(s *metav1.LabelSelector) string {
	selector := metav1.FormatLabelSelector(s)
	if len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		return "all pods"
	}
	return "labels " + selector
}

// countedBy says what of requests tells the counters of a limit apart.
func countedBy(key []v1alpha1.KeyPart) string {
	if len(key) == 0 {
		return "all together"
	}
	parts := make([]string, len(key))
	for i := range key {
		parts[i] = KeyPart(&key[i])
	}
	return strings.Join(parts, ", ")
}

// KeyPart is a part of a limit's key for people.
func KeyPart(p *v1alpha1.KeyPart) string {
	switch {
	case p.ClientIP != nil:
		return "client address"
	case p.Header != nil:
		return "header " + p.Header.Name
	case p.Cookie != nil:
		return "cookie " + p.Cookie.Name
	case p.QueryParameter != nil:
		return "query parameter " + p.QueryParameter.Name
	case p.Path != nil:
		return "path"
	case p.Method != nil:
		return "method"
	default:
		return "expression " + clean(p.Expression)
	}
}

// matches says which requests a limit looks at.
func matches(l *v1alpha1.Limit) string {
	all := "all"
	if len(l.Match) > 0 {
		all = anyOf(l.Match)
	}
	if len(l.Except) > 0 {
		all += " except " + anyOf(l.Except)
	}
	return all
}

func anyOf(list []v1alpha1.Match) string {
	parts := make([]string, len(list))
	for i := range list {
		parts[i] = conditions(&list[i])
	}
	return strings.Join(parts, " or ")
}

func conditions(m *v1alpha1.Match) string {
	var parts []string
	if len(m.Methods) > 0 {
		methods := make([]string, len(m.Methods))
		for i, method := range m.Methods {
			methods[i] = string(method)
		}
		parts = append(parts, strings.Join(methods, "|"))
	}
	if m.Path != nil {
		parts = append(parts, pathOf(m.Path))
	}
	for _, h := range m.Headers {
		parts = append(parts, fmt.Sprintf("%s: %s", h.Name, clean(h.Value)))
	}
	if m.Expression != "" {
		parts = append(parts, "where "+clean(m.Expression))
	}
	return strings.Join(parts, " ")
}

func pathOf(p *v1alpha1.PathMatch) string {
	value := clean(p.Value)
	switch {
	case p.Type == "Prefix" && value != "/":
		return strings.TrimSuffix(value, "/") + "[/…]"
	case p.Type == "RegularExpression":
		return "~" + value
	default:
		return value
	}
}

// notInForce tells of policies that select the pod and that it does not enforce, and
// of those of which it enforces another generation.
func notInForce(sources []Source, generations map[string]int64) (notes []string) {
	sources = slices.SortedFunc(slices.Values(sources), func(a, b Source) int {
		return cmp.Compare(a.Policy.Name, b.Policy.Name)
	})
	for i := range sources {
		p := sources[i].Policy
		generation, enforced := generations[p.Name]
		switch {
		case enforced && generation != p.Generation:
			notes = append(notes, fmt.Sprintf("policy %s has generation %d, and the pod still enforces generation %d%s",
				p.Name, p.Generation, generation, because(p)))
		case !enforced && !sources[i].Unsure:
			notes = append(notes, fmt.Sprintf("policy %s selects the pod, which does not enforce it%s", p.Name, because(p)))
		}
	}
	known := map[string]bool{}
	for i := range sources {
		known[sources[i].Policy.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(generations)) {
		if !known[name] {
			notes = append(notes, fmt.Sprintf("policy %s is enforced, and does not select the pod any more or is deleted", name))
		}
	}
	return notes
}

// because is the condition that is the reason, if one is.
func because(p *v1alpha1.RateLimitPolicy) string {
	for _, kind := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionProgrammed} {
		for _, c := range p.Status.Conditions {
			if c.Type == kind && c.Status != metav1.ConditionTrue {
				return fmt.Sprintf(": %s is %s (%s): %s", c.Type, c.Status, c.Reason, c.Message)
			}
		}
	}
	return ""
}
