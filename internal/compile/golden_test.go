package compile_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/compile"
	"github.com/tallyman-dev/tallyman/internal/golden"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

// input is a file testdata/*.in.yaml: what there is in a namespace and around it.
type input struct {
	Policies []v1alpha1.RateLimitPolicy `json:"policies"`
	Targets  []struct {
		policy.TargetRef `json:",inline"`
		Selector         *policy.Selector `json:"selector"`
	} `json:"targets"`
	Facts compile.Facts `json:"facts"`
}

// output is a file testdata/*.out.yaml: what comes of it.
type output struct {
	Definitions []policy.Definition                       `json:"definitions"`
	Statuses    map[string]v1alpha1.RateLimitPolicyStatus `json:"statuses"`
	// Missing has what is told of pods.
	Missing map[string]string `json:"missing,omitempty"`
}

func TestGoldenFiles(t *testing.T) { golden.Run(t, run) }

func run(in input) output {
	targets := compile.Targets{}
	for _, target := range in.Targets {
		targets[target.TargetRef] = target.Selector
	}

	verdicts := new(compile.Compiler).Namespace(in.Policies, targets)
	out := output{Definitions: verdicts.Definitions(), Statuses: map[string]v1alpha1.RateLimitPolicyStatus{}}
	for i := range in.Policies {
		status := compile.Status(&in.Policies[i], verdicts[i], in.Facts)
		for j := range status.Conditions {
			status.Conditions[j].LastTransitionTime = metav1.Time{}
		}
		out.Statuses[in.Policies[i].Name] = status
	}
	for _, m := range compile.WithoutSidecar(verdicts, in.Facts) {
		if out.Missing == nil {
			out.Missing = map[string]string{}
		}
		out.Missing[m.Pod.Name] = m.Message()
	}
	return out
}
