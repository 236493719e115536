package compile_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/compile"
)

// maxMessage is what a list and the words around it come to.
const maxMessage = 1500

func everyPod(limits ...v1alpha1.Limit) v1alpha1.RateLimitPolicy {
	return v1alpha1.RateLimitPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "orders", Namespace: "shop", Generation: 1},
		Spec:       v1alpha1.RateLimitPolicySpec{Selector: &metav1.LabelSelector{}, Limits: limits},
	}
}

func limit(name string) v1alpha1.Limit {
	return v1alpha1.Limit{Name: name, Requests: new(int64(1)), Window: "1m"}
}

// statusOf judges one policy and returns its status and the message of one of
// its conditions.
func statusOf(t *testing.T, p v1alpha1.RateLimitPolicy, f compile.Facts, condition string) (v1alpha1.RateLimitPolicyStatus, string) {
	t.Helper()
	status := compile.Status(&p, new(compile.Compiler).Namespace([]v1alpha1.RateLimitPolicy{p}, nil)[0], f)
	found := meta.FindStatusCondition(status.Conditions, condition)
	if found == nil {
		t.Fatalf("there is no condition %s in %v", condition, status.Conditions)
	}
	return status, found.Message
}

func TestFaultsOfExpressionsNameTheirFields(t *testing.T) {
	bad := limit("one")
	bad.Match = []v1alpha1.Match{
		{Expression: "request.method == 'GET'"},
		{Expression: "request.nonsense"},
		{Path: &v1alpha1.PathMatch{Type: "RegularExpression", Value: "("}},
	}
	bad.Key = []v1alpha1.KeyPart{{Expression: "1 +"}}
	bad.Cost = &v1alpha1.Cost{Expression: "'text'"}
	status, message := statusOf(t, everyPod(bad), compile.Facts{Published: true}, v1alpha1.ConditionAccepted)
	for _, path := range []string{"match[1].expression", "match[2].path.value", "key[0].expression", "cost.expression"} {
		if !strings.Contains(message, "spec.limits[0]."+path+": ") {
			t.Errorf("the message does not name %s: %s", path, message)
		}
	}
	if strings.Contains(message, "match[0]") {
		t.Errorf("the message names an expression that compiles: %s", message)
	}
	if reason := status.Conditions[0].Reason; len(status.Conditions) != 1 || reason != v1alpha1.ReasonInvalid {
		t.Errorf("conditions are %v, not Accepted for the reason Invalid alone", status.Conditions)
	}
}

func TestManyFaultsAreCountedBeyondABound(t *testing.T) {
	p := everyPod()
	for i := range 64 {
		bad := limit(fmt.Sprintf("limit-%d", i))
		bad.Match = []v1alpha1.Match{{Expression: "request.nonsense == " + strings.Repeat("ä", 200)}}
		p.Spec.Limits = append(p.Spec.Limits, bad)
	}
	_, message := statusOf(t, p, compile.Facts{Published: true}, v1alpha1.ConditionAccepted)
	if !strings.Contains(message, "spec.limits[0].match[0].expression: ") {
		t.Errorf("the first fault's path is missing: %s", message)
	}
	if !strings.Contains(message, " more") {
		t.Errorf("the message does not say that it leaves faults out: %s", message)
	}
	if len(message) > maxMessage || !utf8.ValidString(message) {
		t.Errorf("the message has %d bytes, more than %d, or is not UTF-8: %q", len(message), maxMessage, message)
	}
}

func TestManyPodsBehindAreCountedBeyondTen(t *testing.T) {
	facts := compile.Facts{Published: true, Enforcers: []compile.Enforcer{
		{Pod: "pod-0000", Policies: map[string]int64{"orders": 1}},
		{Pod: "pod-0001", Rejected: map[string]string{"orders": strings.Repeat("ä", 5000)}},
	}}
	for i := range 2000 {
		facts.Pods = append(facts.Pods, compile.Pod{Name: fmt.Sprintf("pod-%04d", i)})
	}
	status, message := statusOf(t, everyPod(limit("one")), facts, v1alpha1.ConditionEnforced)
	want := "1/2000 pods enforce generation 1; behind: pod-0001, pod-0002, pod-0003, pod-0004, pod-0005, " +
		"pod-0006, pod-0007, pod-0008, pod-0009, pod-0010, and 1989 more; pod-0001 rejects it: ä"
	if !strings.HasPrefix(message, want) {
		t.Errorf("message is\n%s\nand not\n%s…", message, want)
	}
	if len(message) > maxMessage || !utf8.ValidString(message) {
		t.Errorf("the message has %d bytes, more than %d, or is not UTF-8: %q", len(message), maxMessage, message)
	}
	if got := status.Enforcers; got.Current != 1 || got.Total != 2000 {
		t.Errorf("enforcers are %+v, not 1 of 2000", *got)
	}
}

func TestAPolicyMadeAnewIsNotEnforcedByPodsThatHaveTheOld(t *testing.T) {
	p := everyPod(limit("one"))
	p.UID = "new"
	enforcer := func(pod string, uids map[string]string) compile.Enforcer {
		return compile.Enforcer{Pod: pod, Policies: map[string]int64{"orders": p.Generation}, UIDs: uids}
	}
	facts := compile.Facts{Published: true, Enforcers: []compile.Enforcer{
		enforcer("a", map[string]string{"orders": "new"}),
		enforcer("b", map[string]string{"orders": "old"}),
		enforcer("c", nil), // an older sidecar, which does not say
	}}
	status, message := statusOf(t, p, facts, v1alpha1.ConditionEnforced)
	if want := "2/3 pods enforce generation 1; behind: b"; message != want {
		t.Errorf("message is %q, not %q", message, want)
	}
	if meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionEnforced) {
		t.Error("it counts as enforced")
	}
}

func TestStatusIsTheSameWhileFactsAre(t *testing.T) {
	fault := compile.Fault{Reason: v1alpha1.ReasonStoreUnavailable, Message: "the store does not answer: timeout"}
	for name, facts := range map[string]compile.Facts{
		"enforced":   {Published: true, Enforcers: []compile.Enforcer{{Pod: "a", Policies: map[string]int64{"orders": 1}}}},
		"no pods":    {Published: true},
		"store down": {Fault: &fault},
	} {
		t.Run(name, func(t *testing.T) {
			p := everyPod(limit("one"))
			p.Status, _ = statusOf(t, p, facts, v1alpha1.ConditionAccepted)
			for i := range p.Status.Conditions { // as if it had been written an hour ago
				before := p.Status.Conditions[i].LastTransitionTime
				p.Status.Conditions[i].LastTransitionTime = metav1.NewTime(before.Add(-3600e9))
			}
			again, _ := statusOf(t, p, facts, v1alpha1.ConditionAccepted)
			if diff := cmp.Diff(p.Status, again); diff != "" {
				t.Errorf("the same facts make another status (-before +after):\n%s", diff)
			}
		})
	}
}
