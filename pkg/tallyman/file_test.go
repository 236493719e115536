package tallyman

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const head = "apiVersion: tallyman.dev/v1alpha1\nkind: RateLimitPolicy\n"

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPoliciesOfAFileAreInTheOrderOfTheirNames(t *testing.T) {
	const one = "spec: {selector: {}, limits: [{name: x, requests: 1, window: 1m}]}\n---\n"
	policies, err := readFile(write(t, head+"metadata: {name: b}\n"+one+
		head+"metadata: {name: a, namespace: shop}\n"+one+head+"metadata: {name: a, namespace: bank}\n"+one), "default", "p")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range policies {
		got = append(got, e.definition.Namespace+"/"+e.definition.Name)
	}
	if diff := cmp.Diff([]string{"shop/a", "bank/a", "default/b"}, got); diff != "" {
		t.Errorf("policies (-want +got):\n%s", diff)
	}
}

func TestAFileIsTakenOnlyIfItsPoliciesCompile(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"name that is none": {"metadata: {name: 'a:b'}\nspec: {selector: {}, limits: [{name: x, requests: 1, window: 1m}]}\n",
			[]string{"policies.yaml:3: ", `"a:b"`}},
		"CEL that does not compile": {"metadata: {name: o}\n" +
			"spec: {selector: {}, limits: [{name: x, requests: 1, window: 1m, cost: {expression: 'request.('}}]}\n",
			[]string{"policies.yaml:4: ", `policy "o"`, "spec.limits[0].cost.expression"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readFile(write(t, head+tc.text), "default", "p")
			if err == nil {
				t.Fatal("the file was taken")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
		})
	}
}
