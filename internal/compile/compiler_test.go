package compile_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/compile"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

// What a compiler remembers changes nothing about what it says.
func TestACompilerJudgesAsIfItHadSeenNothingBefore(t *testing.T) {
	made := func(uid types.UID, generation int64, name string, l v1alpha1.Limit) v1alpha1.RateLimitPolicy {
		p := everyPod(l)
		p.UID, p.Generation, p.Name = uid, generation, name
		return p
	}
	targeting := made("t", 1, "targeting", limit("one"))
	targeting.Spec.Selector, targeting.Spec.TargetRefs = nil, []v1alpha1.TargetRef{{Kind: "Deployment", Name: "orders"}}
	invalid := limit("one")
	invalid.Match = []v1alpha1.Match{{Expression: "1 +"}}
	keyed := limit("one")
	keyed.Key = []v1alpha1.KeyPart{{Header: &v1alpha1.HeaderKey{Name: "X-Api-Key"}}}
	orders := policy.TargetRef{Kind: "Deployment", Name: "orders"}

	compiler := new(compile.Compiler)
	for _, step := range []struct {
		name     string
		policies []v1alpha1.RateLimitPolicy
		targets  compile.Targets
	}{
		{"new", []v1alpha1.RateLimitPolicy{made("a", 1, "a", limit("one")), targeting}, nil},
		{"its target appears", []v1alpha1.RateLimitPolicy{made("a", 1, "a", limit("one")), targeting},
			compile.Targets{orders: {MatchLabels: map[string]string{"app": "orders"}}}},
		{"its target changes", []v1alpha1.RateLimitPolicy{made("a", 1, "a", limit("one")), targeting},
			compile.Targets{orders: {MatchLabels: map[string]string{"app": "basket"}}}},
		{"edited, evadable", []v1alpha1.RateLimitPolicy{made("a", 2, "a", keyed)}, nil},
		{"edited, invalid", []v1alpha1.RateLimitPolicy{made("a", 3, "a", invalid)}, nil},
		{"made anew, of the same generation", []v1alpha1.RateLimitPolicy{made("b", 3, "a", limit("two"))}, nil},
		{"gone", nil, nil},
		{"back", []v1alpha1.RateLimitPolicy{made("b", 3, "a", limit("three"))}, nil},
	} {
		t.Run(step.name, func(t *testing.T) {
			want := new(compile.Compiler).Namespace(step.policies, step.targets)
			for range 2 { // the second time nothing is new
				if diff := cmp.Diff(want, compiler.Namespace(step.policies, step.targets)); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

// A spec is read once for each generation of an object.
func TestACompilerReadsASpecOnce(t *testing.T) {
	p := everyPod(limit("one"))
	compiler := new(compile.Compiler)
	compiler.Namespace([]v1alpha1.RateLimitPolicy{p}, nil)
	p.Spec.Limits = nil // which the API server never does to a generation
	verdict := compiler.Namespace([]v1alpha1.RateLimitPolicy{p}, nil)[0]
	if verdict.Accepted.Status != metav1.ConditionTrue {
		t.Errorf("it was read again: %+v", verdict.Accepted)
	}
}
