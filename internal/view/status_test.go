package view

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/operator"
)

// judged is a policy with conditions "Type Status Reason", of a generation.
func judged(t *testing.T, name string, observed int64, conditions ...string) *v1alpha1.RateLimitPolicy {
	t.Helper()
	p := object(t, name, 2, `{selector: {}, limits: []}`)
	p.Namespace = "shop"
	for _, text := range conditions {
		var c metav1.Condition
		if _, err := fmt.Sscan(text, &c.Type, &c.Status, &c.Reason); err != nil {
			t.Fatal(err)
		}
		c.ObservedGeneration, c.Message = observed, "why"
		p.Status.Conditions = append(p.Status.Conditions, c)
	}
	return p
}

func TestAPolicyIsEnforcedIfTheManagerAndAllPodsSaySo(t *testing.T) {
	const yes, no = "Enforced True Enforced", "Enforced False Partial"
	current, behind := map[string]int64{"p": 2}, map[string]int64{"p": 1}
	for name, c := range map[string]struct {
		policy *v1alpha1.RateLimitPolicy
		pods   []*PodState
		unsure bool
		want   bool
	}{
		"all agree":                   {judged(t, "p", 2, yes), []*PodState{{Generations: current}, {Generations: current}}, false, true},
		"a pod is behind":             {judged(t, "p", 2, yes), []*PodState{{Generations: current}, {Generations: behind}}, false, false},
		"a pod does not answer":       {judged(t, "p", 2, yes), []*PodState{{Generations: current}, {Error: "refused"}}, false, false},
		"the manager says no":         {judged(t, "p", 2, no), []*PodState{{Generations: current}}, false, false},
		"the manager is behind":       {judged(t, "p", 1, yes), []*PodState{{Generations: current}}, false, false},
		"the manager says nothing":    {judged(t, "p", 2), []*PodState{{Generations: current}}, false, false},
		"pods were not asked":         {judged(t, "p", 2, yes), []*PodState{{}}, false, true},
		"one has no sidecar to ask":   {judged(t, "p", 2, yes), []*PodState{{}, {Error: "none"}}, false, true},
		"which pods is not known":     {judged(t, "p", 2, yes), []*PodState{{Error: "refused"}}, true, true},
		"it can be evaded, no matter": {judged(t, "p", 2, yes, "Evadable True ClientChosenKey"), nil, false, true},
	} {
		s := NewStatus([]Selected{{Policy: c.policy, Pods: c.pods, Unsure: c.unsure}})
		if s.Enforced() != c.want {
			t.Errorf("%s: enforced is %v, want %v", name, s.Enforced(), c.want)
		}
	}
}

func TestStatusIsShown(t *testing.T) {
	good := &PodState{Namespace: "shop", Name: "a", Version: "v1", Generations: map[string]int64{"p": 2, "q": 2}}
	bad := &PodState{Namespace: "shop", Name: "b", Generations: map[string]int64{"q": 1}}
	s := NewStatus([]Selected{
		{Policy: judged(t, "p", 2, "Accepted True Accepted", "Programmed True Programmed", "Enforced True Enforced",
			"Evadable True ClientChosenKey", "Bypassed True NumericTargetPort"),
			Pods: []*PodState{good, bad}},
		{Policy: judged(t, "q", 1, "Accepted True Accepted"), Pods: []*PodState{good, bad}},
		{Policy: judged(t, "r", 2, "Accepted False Invalid")},
	})
	s.Store = &operator.StoreHealth{Error: "no node answered"}
	var b strings.Builder
	if err := s.WriteText(&b, Style{}); err != nil {
		t.Fatal(err)
	}
	const want = `Not enforced by all pods: p, q, r (3 of 3 policies)
The store does not answer the manager (no node answered): pods that do not reach it either go by each limit's failurePolicy.

NAMESPACE  POLICY  GEN  ACCEPTED      PROGRAMMED  ENFORCED  PODS
shop       p       2    True          True        True      1/2
shop       q       2    True (stale)  -           -         1/2
shop       r       2    False         -           -         0/0

NAMESPACE  POD  SIDECAR  ENFORCES
shop       b    -        p not, q 1 (behind)
shop       a    v1       p 2, q 2

note: policy p: Evadable is True (ClientChosenKey): why
note: policy p: Bypassed is True (NumericTargetPort): why
note: policy q: the manager has not looked at generation 2: is it running?
note: policy r: Accepted is False (Invalid): why
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAStoreThatDoesNotAnswerIsToldAtTheTop(t *testing.T) {
	s := NewStatus(nil)
	s.Store = &operator.StoreHealth{Nodes: []operator.NodeHealth{{Address: "a:6379", Scripts: 5}, {Address: "b:6379", Error: "timeout"}}}
	var b strings.Builder
	if err := s.WriteText(&b, Style{}); err != nil {
		t.Fatal(err)
	}
	const want = `There is no policy.
The store does not answer the manager (1 of 2 nodes): pods that do not reach it either go by each limit's failurePolicy.

STORE NODE  PING                SCRIPTS
a:6379      0s                  all 5
b:6379      no answer: timeout  -
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
