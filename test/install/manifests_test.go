package install

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// system is the namespace that config/default installs into.
const system = "tallyman-system"

// manifests are objects by their kind and name, each as YAML.
type manifests map[string]string

// render is what the chart comes to.
func render(t *testing.T, args ...string) manifests {
	t.Helper()
	return parse(t, mustRun(t, helmPath, append([]string{"template", "tallyman", chart, "--namespace", system}, args...)...))
}

// build is what a kustomization comes to.
func build(t *testing.T, dir string) manifests {
	t.Helper()
	return parse(t, mustRun(t, kustomizePath, "build", dir))
}

func parse(t *testing.T, text string) manifests {
	t.Helper()
	all := manifests{}
	for _, document := range regexp.MustCompile(`(?m)^---$`).Split(text, -1) {
		var object struct {
			Kind     string
			Metadata struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if object.Kind == "" {
			continue // nothing but comments
		}
		normalized, err := normalize([]byte(document))
		if err != nil {
			t.Fatal(err)
		}
		name := object.Kind + " " + object.Metadata.Name
		if all[name] != "" {
			t.Errorf("%s comes twice", name)
		}
		all[name] = string(normalized)
	}
	return all
}

// normalize sorts fields by their names.
func normalize(document []byte) ([]byte, error) {
	asJSON, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(asJSON)
}

// withoutHelms leaves out what only Helm has use for.
func (m manifests) withoutHelms() manifests {
	lines := regexp.MustCompile(`(?m)^    (app\.kubernetes\.io/(instance|managed-by|version)|helm\.sh/(chart|resource-policy)): .*\n`)
	all := manifests{}
	for name, text := range m {
		all[name] = lines.ReplaceAllString(text, "")
	}
	return all
}

// changed tells what is other than in the default ones: what is added or changed as it
// is, and what is gone by its name.
func (m manifests) changed(defaults manifests) string {
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if m[name] != defaults[name] {
			out.WriteString("---\n" + m[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(defaults)) {
		if m[name] == "" {
			out.WriteString("# gone: " + name + "\n")
		}
	}
	return out.String()
}
