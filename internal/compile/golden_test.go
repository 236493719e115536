package compile_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/compile"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

var update = flag.Bool("update", false, "write what comes out to testdata/*.out.yaml")

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

func TestGoldenFiles(t *testing.T) {
	inputs, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(inputs) == 0 {
		t.Fatalf("find testdata: %d files, %v", len(inputs), err)
	}
	for _, path := range inputs {
		name := strings.TrimSuffix(filepath.Base(path), ".in.yaml")
		t.Run(name, func(t *testing.T) {
			got, err := yaml.Marshal(run(t, path))
			if err != nil {
				t.Fatal(err)
			}
			compare(t, filepath.Join("testdata", name+".out.yaml"), got)
		})
	}
}

func run(t *testing.T, path string) output {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var in input
	if err := yaml.UnmarshalStrict(text, &in); err != nil {
		t.Fatalf("read %s: %v", path, err)
	}
	targets := compile.Targets{}
	for _, target := range in.Targets {
		targets[target.TargetRef] = target.Selector
	}

	verdicts := compile.Namespace(in.Policies, targets)
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

func compare(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test ./internal/compile -update writes it)", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}
