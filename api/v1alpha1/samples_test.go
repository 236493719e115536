package v1alpha1_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/match"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

const samples = "../../config/samples"

func TestEverySampleApplies(t *testing.T) {
	kubectl(t, "create", "namespace", "shop")
	kubectl(t, "apply", "--filename", samples)
}

// What no schema can see: the expressions compile.
func TestEverySampleIsAccepted(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(samples, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("samples %q: %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			spec, err := decodeSample(file)
			if err == nil {
				_, err = match.Compile(&spec)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// decodeSample goes the way of the manager: the API's type, its JSON, the
// contract's type.
func decodeSample(file string) (policy.Spec, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return policy.Spec{}, err
	}
	var p v1alpha1.RateLimitPolicy
	if err := yaml.UnmarshalStrict(text, &p); err != nil {
		return policy.Spec{}, err
	}
	spec, err := json.Marshal(p.Spec)
	if err != nil {
		return policy.Spec{}, err
	}
	return policy.DecodeSpec(spec)
}
