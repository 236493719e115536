package policyfile

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

const head = "apiVersion: tallyman.dev/v1alpha1\nkind: RateLimitPolicy\n"

const one = "spec: {selector: {}, limits: [{name: x, requests: 1, window: 1m}]}\n"

func TestFileHasManyDocuments(t *testing.T) {
	var got []string
	err := Parse([]byte("# of the shop\n---\n"+
		head+"metadata: {name: b}\n"+one+
		"--- # a comment\n\n# nothing but comments\n---\n"+
		head+"metadata: {name: a, namespace: shop, generation: 7}\n"+one+
		"---\n"+head+"metadata: {name: a, namespace: bank}\n"+one+
		"---\r\n"+head+one+"...\n---\n"), "default", func(d policy.Definition) error {
		got = append(got, d.Namespace+"/"+d.Name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"default/b", "shop/a", "bank/a", "default/policy-4"}, got); diff != "" {
		t.Errorf("policies (-want +got):\n%s", diff)
	}
}

func TestFileMayBeWhatKubectlPrints(t *testing.T) {
	err := Parse([]byte(`apiVersion: tallyman.dev/v1alpha1
kind: RateLimitPolicy
metadata:
  annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}"}
  creationTimestamp: "2026-11-29T16:00:00Z"
  generation: 3
  name: orders
  namespace: shop
  resourceVersion: "42"
  uid: 1c0ffee0-0000-0000-0000-000000000000
spec:
  selector: {matchLabels: {app: orders}}
  limits:
  - {name: x, requests: 1, window: 1m}
status:
  conditions:
  - {type: Accepted, status: "True", reason: Accepted, message: "", lastTransitionTime: "2026-11-29T16:00:00Z"}
`), "default", func(d policy.Definition) error {
		if d.Namespace != "shop" || d.Name != "orders" || d.Generation != 3 {
			t.Errorf("read %s/%s of generation %d", d.Namespace, d.Name, d.Generation)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestFileErrorsNameThePlace(t *testing.T) {
	good := head + "metadata: {name: good}\n" + one + "---\n"
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"nothing":            {"# nothing\n---\n", []string{"no RateLimitPolicy"}},
		"not YAML":           {good + "a: b: c\n", []string{"document 2", "line 6"}},
		"twice the same key": {good + head + "metadata: {name: o}\nkind: x\n" + one, []string{"document 2", "already"}},
		"no kind":            {good + "apiVersion: tallyman.dev/v1alpha1\n" + one, []string{"document 2", "kind is not set", "RateLimitPolicy"}},
		"other kind":         {good + "apiVersion: v1\nkind: ConfigMap\ndata: {}\n", []string{"document 2", `"ConfigMap"`, "RateLimitPolicy"}},
		"other version": {good + "apiVersion: tallyman.dev/v9\nkind: RateLimitPolicy\n" + one,
			[]string{"document 2", `"tallyman.dev/v9"`, "tallyman.dev/v1alpha1"}},
		"no spec":        {head + "metadata: {name: o}\n", []string{"document 1", "spec"}},
		"misspelt field": {head + "metadata: {name: o}\nspek: {}\n" + one, []string{"document 1", `"spek"`}},
		"misspelt field of the spec": {head + "metadata: {name: o}\nspec: {selector: {}, limts: []}\n",
			[]string{"document 1", `policy "o"`, "spec.limts"}},
		"same name twice": {good + good, []string{"document 2", "default/good", "document 1"}},
		"window of another unit": {head + "metadata: {name: o}\nspec: {selector: {}, limits: [{name: x, requests: 1, window: 1d}]}\n",
			[]string{"document 1", `policy "o"`, `"1d"`, "24h"}},
		"fraction": {head + "metadata: {name: o}\nspec: {selector: {}, limits: [{name: x, requests: 1, window: 1m, cost: {requests: 1.5}}]}\n",
			[]string{"document 1", `policy "o"`, "cost.requests"}},
		"text for a number": {head + "metadata: {name: o}\nspec: {selector: {}, limits: [{name: x, requests: 1, window: 1m, cost: {requests: ''}}]}\n",
			[]string{"document 1", `policy "o"`, "cost.requests"}},
		"not a number": {head + "metadata: {name: o}\nspec: {selector: {}, limits: [{name: x, requests: 1, window: 1m, cost: {requests: .nan}}]}\n",
			[]string{"document 1"}},
		"not accepted":   {good + head + "metadata: {name: bad}\n" + one, []string{"document 2", `policy "bad"`, "not today"}},
		"several faults": {head + "metadata: {name: bad}\n" + one + "---\nkind: Pod\n", []string{"document 1", "document 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := Parse([]byte(tc.text), "default", func(d policy.Definition) error {
				if d.Name == "bad" {
					return errors.New("not today")
				}
				return nil
			})
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
