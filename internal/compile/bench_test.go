package compile_test

import (
	"fmt"
	"testing"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/compile"
)

// BenchmarkNamespace is what a resync costs for 100 policies with CEL.
func BenchmarkNamespace(b *testing.B) {
	var policies []v1alpha1.RateLimitPolicy
	for i := range 100 {
		l := limit("one")
		l.Match = []v1alpha1.Match{{Expression: fmt.Sprintf("request.method == 'GET' && request.path != '/%d'", i)}}
		policies = append(policies, everyPod(l))
	}
	for b.Loop() {
		compile.Namespace(policies, nil)
	}
}
