package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/tallyman-dev/tallyman/internal/policyfile"
	"github.com/tallyman-dev/tallyman/internal/simulate"
)

var betweenDocuments = regexp.MustCompile(`(?m)^---$`)

// Each sample of YAML is valid YAML. Those that are objects of Kubernetes are accepted
// by an API server, if it knows their kind, and policies are valid, too, by the checks
// that only the manager makes.
func TestSamplesAreValid(t *testing.T) {
	server := admin(t)
	for _, p := range pages(t) {
		for _, b := range p.blocks {
			if language, _, _ := strings.Cut(b.info, " "); language != "yaml" {
				continue
			}
			for _, document := range betweenDocuments.Split(b.text, -1) {
				if err := checkSample(t, server, document); err != nil {
					t.Errorf("%s:%d: %v", p.name, b.line, err)
				}
			}
		}
	}
}

func checkSample(t *testing.T, server client.Client, document string) error {
	if text, ok := policyOfLimits(document); ok {
		document = text
	}
	var value any
	if err := yaml.UnmarshalStrict([]byte(document), &value); err != nil {
		return err
	}
	fields, _ := value.(map[string]any)
	object := &unstructured.Unstructured{Object: fields}
	if object.GetAPIVersion() == "" || object.GetKind() == "" {
		return nil
	}
	if object.GetKind() == "RateLimitPolicy" {
		if err := policyfile.Parse("sample", []byte(document), "default", new(simulate.Policies).Add); err != nil {
			return err
		}
	}
	if !known(server, object) {
		return nil
	}
	// Names and namespaces of samples are those of other people's clusters.
	object.SetNamespace("default")
	object.SetName("sample")
	return server.Create(t.Context(), object, client.DryRunAll, client.FieldValidation("Strict"))
}

// policyOfLimits makes a policy of a sample that is a list of limits.
func policyOfLimits(document string) (text string, ok bool) {
	if !regexp.MustCompile(`(?m)\A(#.*\n)*- \{?name: .*(\n|, )`).MatchString(document) || !strings.Contains(document, "requests: ") {
		return "", false
	}
	return fmt.Sprintf("apiVersion: tallyman.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: sample}\nspec:\n  selector: {}\n  limits:\n%s",
		regexp.MustCompile("(?m)^").ReplaceAllString(strings.TrimSpace(document), "  ")), true
}

// Pages that have files of the same name beside them show these as they are.
func TestPagesShowTheirFiles(t *testing.T) {
	byName := map[string]*page{}
	for _, p := range pages(t) {
		byName[p.name] = p
	}
	files, err := filepath.Glob(filepath.Join(root, "docs/*/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("find samples: %d, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.ToSlash(file), root+"/"), ".yaml") + ".md"
		shown := false
		for _, b := range byName[name].blocks {
			shown = shown || b.text == string(text)
		}
		if !shown {
			t.Errorf("%s does not show %s", name, file)
		}
	}
}
