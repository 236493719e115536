package policy_test

import (
	"encoding/json"
	"os"
	"regexp"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// What the documentation shows is valid: every block is a list of limits.
func TestTheLimitsOfTheDocumentationAreValid(t *testing.T) {
	text, err := os.ReadFile("../../docs/counting.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)\n```yaml\n(.*?)```").FindAllSubmatch(text, -1)
	if len(blocks) == 0 {
		t.Fatal("no limits")
	}
	for _, block := range blocks {
		limits, err := yaml.YAMLToJSONStrict(block[1])
		if err != nil {
			t.Errorf("%v:\n%s", err, block[1])
			continue
		}
		spec, err := json.Marshal(map[string]any{"selector": struct{}{}, "limits": json.RawMessage(limits)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := policy.DecodeSpec(spec); err != nil {
			t.Errorf("%v:\n%s", err, block[1])
		}
	}
}
