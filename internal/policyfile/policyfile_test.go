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
	err := Parse("p.yaml", []byte("# of the shop\n---\n"+
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
	err := Parse("p.yaml", []byte(`apiVersion: tallyman.dev/v1alpha1
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

// Editors of other systems begin a file with a mark, and end lines in their way.
func TestFilesAreReadAsEditorsLeaveThem(t *testing.T) {
	text := head + "metadata: {name: a}\n" + one + "---\n# another\n" + head + "metadata: {name: b}\n" + one
	for name, text := range map[string]string{
		"a byte order mark":                   "\uFEFF" + text,
		"a byte order mark and a separator":   "\uFEFF---\n" + text,
		"carriage returns":                    strings.ReplaceAll(text, "\n", "\r\n"),
		"a byte order mark, with all of that": "\uFEFF---\r\n" + strings.ReplaceAll(text, "\n", "\r\n"),
	} {
		var names []string
		err := Parse("p.yaml", []byte(text), "default", func(d policy.Definition) error {
			names = append(names, d.Name)
			return nil
		})
		if err != nil || strings.Join(names, " ") != "a b" {
			t.Errorf("with %s: %q, %v", name, names, err)
		}
	}
}

func TestFileErrorsNameThePlace(t *testing.T) {
	good := head + "metadata: {name: good}\n" + one + "---\n"
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"nothing":            {"# nothing\n---\n", []string{"p.yaml:1:", "no RateLimitPolicy"}},
		"not YAML":           {good + "a: b: c\n", []string{"p.yaml:6: not valid YAML: mapping values"}},
		"twice the same key": {good + head + "metadata: {name: o}\nkind: x\n" + one, []string{"p.yaml:9:", "already"}},
		"no kind":            {good + "apiVersion: tallyman.dev/v1alpha1\n" + one, []string{"p.yaml:6:", "kind is not set", "RateLimitPolicy"}},
		"other kind":         {good + "apiVersion: v1\nkind: ConfigMap\ndata: {}\n", []string{"p.yaml:7:", `"ConfigMap"`, "RateLimitPolicy"}},
		"other version": {good + "apiVersion: tallyman.dev/v9\nkind: RateLimitPolicy\n" + one,
			[]string{"p.yaml:6:", `"tallyman.dev/v9"`, "tallyman.dev/v1alpha1"}},
		"no spec":        {head + "metadata: {name: o}\n", []string{"p.yaml:1:", "spec"}},
		"misspelt field": {head + "metadata: {name: o}\nspecs: {}\n", []string{"p.yaml:4:", `"specs": unknown field: perhaps spec; the fields here are apiVersion`}},
		"unknown field":  {head + "metadata: {name: o}\ndata: {}\n" + one, []string{"p.yaml:4:", `"data": unknown field: the fields here are apiVersion`}},
		"a number for a version": {"apiVersion: 1\nkind: RateLimitPolicy\n" + one,
			[]string{"p.yaml:1: apiVersion is", "write tallyman.dev/v1alpha1"}},
		"a number for a name": {head + "metadata: {name: 5}\n" + one, []string{"p.yaml:3: ", "metadata.name must be a string, and is of the type number"}},
		"a text for metadata": {head + "metadata: o\n" + one, []string{"p.yaml:3: ", "metadata must be an object, and is of the type string"}},
		"misspelt field of the spec": {head + "metadata: {name: o}\nspec: {selector: {}, limts: []}\n",
			[]string{"p.yaml:4:", `policy "o"`, "spec.limts"}},
		"same name twice": {good + good, []string{"p.yaml:8:", "default/good", "line 1"}},
		"window of another unit": {head + "metadata: {name: o}\nspec: {selector: {}, limits: [{name: x, requests: 1, window: 1d}]}\n",
			[]string{"p.yaml:4:", `policy "o"`, `"1d"`, "24h"}},
		"fraction": {head + "metadata: {name: o}\nspec: {selector: {}, limits: [{name: x, requests: 1, window: 1m, cost: {requests: 1.5}}]}\n",
			[]string{"p.yaml:4:", `policy "o"`, "cost.requests"}},
		"text for a number": {head + "metadata: {name: o}\nspec: {selector: {}, limits: [{name: x, requests: 1, window: 1m, cost: {requests: ''}}]}\n",
			[]string{"p.yaml:4:", `policy "o"`, "cost.requests"}},
		"not a number": {head + "metadata: {name: o}\nspec: {selector: {}, limits: [{name: x, requests: 1, window: 1m, cost: {requests: .nan}}]}\n",
			[]string{"p.yaml:1:", "NaN"}},
		"not accepted":   {good + head + "metadata: {name: bad}\n" + one, []string{"p.yaml:8:", `policy "bad"`, "not today"}},
		"several faults": {head + "metadata: {name: bad}\n" + one + "---\nkind: Pod\n", []string{"p.yaml:3:", "\np.yaml:6:"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := Parse("p.yaml", []byte(tc.text), "default", func(d policy.Definition) error {
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

func TestEachFaultHasTheLineOfItsField(t *testing.T) {
	err := Parse("p.yaml", []byte(`# The policies of the shop.
---
apiVersion: tallyman.dev/v1alpha1
kind: RateLimitPolicy
metadata:
  name: orders
spec:
  selector: {}
  limits:
  - &total
    name: total
    requests: 10
    window: 1h
    key:
    - header:
        nme: X-Api-Key
    - remoteAddr: {}
  -
    name: burst
    requests: -1
    window: 1d
  - *total
  enforcment: Shadow
`), "default", func(policy.Definition) error { return nil })
	faults, ok := errors.AsType[Faults](err)
	if !ok {
		t.Fatal(err)
	}
	var got []int
	for _, f := range faults {
		if f.File != "p.yaml" || f.Policy != "orders" || f.Foreign {
			t.Errorf("fault %+v", f)
		}
		got = append(got, f.Line)
	}
	// The third limit is written where the first is.
	if diff := cmp.Diff([]int{16, 17, 21, 16, 17, 23}, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s\n%v", diff, err)
	}
}

func TestFilesThatAreTooLargeAreRefused(t *testing.T) {
	data, err := ReadAll(strings.NewReader(strings.Repeat("#", 2*maxSize)))
	if err != nil || len(data) != maxSize+1 {
		t.Fatalf("read %d bytes, %v", len(data), err)
	}
	if err := Parse("p.yaml", data, "default", nil); err == nil || !strings.Contains(err.Error(), "p.yaml:1: the file has more than the 16777216 bytes") {
		t.Errorf("got %v", err)
	}
}

func TestObjectsOfOthersAreForeign(t *testing.T) {
	for text, want := range map[string]bool{
		"apiVersion: v1\nkind: Service\nspec: {}\n":                           true,
		"apiVersion: tallyman.dev/v1alpha1\nkind: RateLimitPolicies\n":        false,
		"apiVersion: tallyman.io/v1alpha1\nkind: RateLimitPolicy\nspec: {}\n": false,
		"kind: Service\n": false,
		"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service}\n":                            true,
		"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: tallyman.dev/v1alpha1, kind: RateLimitPolicy}\n": false,
	} {
		faults, ok := errors.AsType[Faults](Parse("p.yaml", []byte(text), "default", nil))
		if !ok || len(faults) != 1 || faults[0].Foreign != want {
			t.Errorf("%q: %v, foreign should be %v", text, faults, want)
		}
	}
}
