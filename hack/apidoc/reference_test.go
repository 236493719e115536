package main

import (
	"os"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// The reference has every field of ours, and what the API server says of each rule.
func TestTheReferenceHasAllFieldsAndRules(t *testing.T) {
	text, err := os.ReadFile("../../config/crd/bases/tallyman.dev_ratelimitpolicies.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &crd); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	writeVersion(&out, &crd, &crd.Spec.Versions[0])
	reference := out.String()

	var visit func(path string, s *schema)
	visit = func(path string, s *schema) {
		for _, rule := range s.XValidations {
			if !strings.Contains(reference, escape(rule.Message)) {
				t.Errorf("%s: the reference does not say %q", path, rule.Message)
			}
		}
		for name, p := range s.Properties {
			if !strings.Contains(reference, "\n| `"+name+"` |") {
				t.Errorf("the reference has no %s.%s", path, name)
			}
			visit(path+"."+name, &p)
		}
		if s.Items != nil {
			visit(path+"[]", s.Items.Schema)
		}
	}
	for _, part := range []string{"spec", "status"} {
		p := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties[part]
		visit(part, &p)
	}
}

func TestAFieldIsToldWithItsDefaultAndBounds(t *testing.T) {
	s := &schema{
		Type:        "integer",
		Description: "n is <how> many.\nDefault: as many as `m`.\nExample: `3`.",
		Minimum:     new(1.0), Maximum: new(9007199254740991.0),
	}
	if got := defaultOf(field{"n", false, s}); got != "as many as `m`" {
		t.Errorf("default: %s", got)
	}
	if got, want := aboutField(s), "n is &lt;how> many. Example: `3`.<br>*1 to 9007199254740991*"; got != want {
		t.Errorf("about it: %s", got)
	}
}
