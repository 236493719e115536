package compile_test

import (
	"fmt"
	"testing"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/compile"
)

// BenchmarkNamespace is what 100 policies with CEL cost a manager that has just
// started, and BenchmarkResync what they cost it from then on.
func BenchmarkNamespace(b *testing.B) {
	policies := hundred()
	for b.Loop() {
		new(compile.Compiler).Namespace(policies, nil)
	}
}

func BenchmarkResync(b *testing.B) {
	policies, compiler := hundred(), new(compile.Compiler)
	for b.Loop() {
		compiler.Namespace(policies, nil)
	}
}

func hundred() []v1alpha1.RateLimitPolicy {
	var policies []v1alpha1.RateLimitPolicy
	for i := range 100 {
		l := limit("one")
		l.Match = []v1alpha1.Match{{Expression: fmt.Sprintf("request.method == 'GET' && request.path != '/%d'", i)}}
		p := everyPod(l)
		p.Name = fmt.Sprintf("policy-%d", i)
		policies = append(policies, p)
	}
	return policies
}
