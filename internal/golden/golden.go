// Package golden compares what comes out with files in testdata. With the flag
// -update of the test it writes them.
//
// Only tests may import this package.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write what comes out to the golden files in testdata")

// Inputs reads the files testdata/*.in.yaml, by name. A field that is not known is an
// error, and so is having no file.
func Inputs[In any](t testing.TB) map[string]In {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("find testdata: %d files, %v", len(paths), err)
	}
	inputs := map[string]In{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var in In
		if err := yaml.UnmarshalStrict(text, &in); err != nil {
			t.Fatalf("read %s: %v", path, err)
		}
		inputs[strings.TrimSuffix(filepath.Base(path), ".in.yaml")] = in
	}
	return inputs
}

// Run compares what comes of each of the Inputs with testdata/*.out.yaml.
func Run[In, Out any](t *testing.T, run func(In) Out) {
	t.Helper()
	for name, in := range Inputs[In](t) {
		t.Run(name, func(t *testing.T) {
			got, err := yaml.Marshal(run(in))
			if err != nil {
				t.Fatal(err)
			}
			Compare(t, filepath.Join("testdata", name+".out.yaml"), string(got))
		})
	}
}

// ComparePart compares a text with a part of a page: what stands between the lines
// "<!-- begin name -->" and "<!-- end name -->".
func ComparePart(t testing.TB, path, name, got string) {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(page), "<!-- begin "+name+" -->\n")
	_, after, ends := strings.Cut(rest, "<!-- end "+name+" -->\n")
	if !begins || !ends {
		t.Fatalf("%s has no part %s", path, name)
	}
	Compare(t, path, before+"<!-- begin "+name+" -->\n"+got+"<!-- end "+name+" -->\n"+after)
}

// Compare compares a text with a file.
func Compare(t testing.TB, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test -update writes it)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}
