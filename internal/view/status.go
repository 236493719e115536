package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/operator"
)

// Status is how policies are enforced.
type Status struct {
	Policies []PolicyStatus `json:"policies"`
	// Pods are those that the policies select, those first that do not enforce all.
	Pods []PodStatus `json:"pods"`
	// Store is absent when the manager was not asked, or did not answer.
	Store *operator.StoreHealth `json:"store,omitempty"`
	Notes []string              `json:"notes,omitempty"`
}

// PolicyStatus is one policy's.
type PolicyStatus struct {
	Namespace  string `json:"namespace"`
	Policy     string `json:"policy"`
	Generation int64  `json:"generation"`
	// Conditions are the object's.
	Conditions []ConditionStatus `json:"conditions"`
	// Pods is how many the policy selects, and Current how many of them enforce the
	// generation. They are as the sidecars say, where they were asked, else as the
	// object says, and absent where neither is known.
	Pods    *int `json:"pods,omitempty"`
	Current *int `json:"current,omitempty"`
	// Enforced says that the manager and all pods agree that it is.
	Enforced bool `json:"enforced"`
}

// ConditionStatus is a condition of a policy.
type ConditionStatus struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Stale says that it speaks of an earlier generation.
	Stale bool `json:"stale,omitempty"`
}

// PodStatus is one pod's.
type PodStatus struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	// Sidecar is its version; empty when it was not injected.
	Sidecar string `json:"sidecar,omitempty"`
	// Told says that the sidecar has told what it enforces.
	Told bool `json:"told"`
	// Policies are those that select the pod.
	Policies []PodPolicy `json:"policies"`
	// Error is why the sidecar did not tell; empty when it was not asked.
	Error string `json:"error,omitempty"`
}

// PodPolicy is what a pod does about a policy.
type PodPolicy struct {
	Policy string `json:"policy"`
	// Generation that it enforces; 0 for none, or if that is not known.
	Generation int64 `json:"generation,omitempty"`
	Current    bool  `json:"current"`
}

// Selected is a policy with the live pods that it selects.
type Selected struct {
	Policy *v1alpha1.RateLimitPolicy
	Pods   []*PodState
	// Unsure says that these are not known.
	Unsure bool
}

// PodState is what there is to know of a live pod.
type PodState struct {
	Namespace, Name string
	// Version of its sidecar.
	Version string
	// Generations that it enforces, by policy; nil when it has not told.
	Generations map[string]int64
	// Error is why it has not told; empty when it was not asked.
	Error string
}

// NewStatus judges policies by what the manager and the sidecars say of them.
func NewStatus(policies []Selected) Status {
	s := Status{Policies: []PolicyStatus{}, Pods: []PodStatus{}}
	pods := map[*PodState]*PodStatus{}
	var order []*PodState
	for i := range policies {
		p := &policies[i]
		s.Policies = append(s.Policies, p.status())
		s.Notes = append(s.Notes, p.notes()...)
		for _, pod := range p.Pods {
			if pods[pod] == nil {
				pods[pod] = &PodStatus{
					Namespace: pod.Namespace, Pod: pod.Name, Sidecar: pod.Version, Told: pod.Generations != nil, Error: pod.Error,
				}
				order = append(order, pod)
			}
			generation := pod.Generations[p.Policy.Name]
			pods[pod].Policies = append(pods[pod].Policies, PodPolicy{
				Policy: p.Policy.Name, Generation: generation, Current: generation == p.Policy.Generation,
			})
		}
	}
	for _, pod := range order {
		s.Pods = append(s.Pods, *pods[pod])
	}
	slices.SortFunc(s.Pods, func(a, b PodStatus) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), compareBools(a.isCurrent(), b.isCurrent()), strings.Compare(a.Pod, b.Pod))
	})
	return s
}

// compareBools puts false first.
func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// Enforced says whether all policies are.
func (s *Status) Enforced() bool {
	return !slices.ContainsFunc(s.Policies, func(p PolicyStatus) bool { return !p.Enforced })
}

func (p *PodStatus) isCurrent() bool {
	return !slices.ContainsFunc(p.Policies, func(p PodPolicy) bool { return !p.Current })
}

func (p *Selected) status() PolicyStatus {
	out := PolicyStatus{
		Namespace: p.Policy.Namespace, Policy: p.Policy.Name, Generation: p.Policy.Generation,
		Conditions: []ConditionStatus{}, Enforced: isTrue(p.Policy, v1alpha1.ConditionEnforced),
	}
	for _, c := range p.Policy.Status.Conditions {
		out.Conditions = append(out.Conditions, ConditionStatus{
			Type: c.Type, Status: string(c.Status), Reason: c.Reason, Message: c.Message, Stale: isStale(p.Policy, &c),
		})
	}
	total, current, asked := p.count()
	switch e := p.Policy.Status.Enforcers; {
	case asked:
		out.Pods, out.Current = &total, &current
		out.Enforced = out.Enforced && current == total
	case e != nil:
		out.Pods, out.Current = new(int(e.Total)), new(int(e.Current))
	}
	return out
}

// count counts the pods by what they have told, if all were asked.
func (p *Selected) count() (total, current int, asked bool) {
	if p.Unsure {
		return 0, 0, false
	}
	for _, pod := range p.Pods {
		if pod.Generations[p.Policy.Name] == p.Policy.Generation {
			current++
		}
		if pod.Generations == nil && pod.Error == "" {
			return 0, 0, false
		}
	}
	return len(p.Pods), current, true
}

func isTrue(p *v1alpha1.RateLimitPolicy, kind string) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c metav1.Condition) bool {
		return c.Type == kind && c.Status == metav1.ConditionTrue && !isStale(p, &c)
	})
}

func isStale(p *v1alpha1.RateLimitPolicy, c *metav1.Condition) bool {
	return c.ObservedGeneration != p.Generation
}

// risks are the conditions that are there only while they are true, and something is
// amiss. All others should be true.
var risks = []string{v1alpha1.ConditionEvadable, v1alpha1.ConditionBypassed}

// notes are the conditions that are not as they should be.
func (p *Selected) notes() (notes []string) {
	if len(p.Policy.Status.Conditions) == 0 {
		return []string{fmt.Sprintf("policy %s: the manager has not looked at it: is it running? (kubectl get pods --namespace tallyman-system)",
			p.Policy.Name)}
	}
	for _, c := range p.Policy.Status.Conditions {
		switch {
		case isStale(p.Policy, &c):
			notes = append(notes, fmt.Sprintf("policy %s: the manager has not looked at generation %d: is it running?", p.Policy.Name, p.Policy.Generation))
			return notes
		case slices.Contains(risks, c.Type) == (c.Status == metav1.ConditionTrue):
			notes = append(notes, fmt.Sprintf("policy %s: %s is %s (%s): %s", p.Policy.Name, c.Type, c.Status, c.Reason, c.Message))
		}
	}
	return notes
}
