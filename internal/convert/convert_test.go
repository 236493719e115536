package convert

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/golden"
	"github.com/tallyman-dev/tallyman/internal/match"
	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/policyfile"
)

// policiesOf are the policies as YAML, which are valid.
func policiesOf(t testing.TB, r *Result) string {
	t.Helper()
	var out bytes.Buffer
	if err := r.WriteYAML(&out); err != nil {
		t.Fatal(err)
	}
	err := policyfile.Parse("policies.yaml", out.Bytes(), "default", func(d policy.Definition) error {
		if err := d.CheckNames(); err != nil {
			return err
		}
		_, err := match.Compile(&d.Spec)
		return err
	})
	if err != nil {
		t.Fatalf("%v in:\n%s", err, out.String())
	}
	return out.String()
}

func TestGoldenFiles(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("find testdata: %d files, %v", len(paths), err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(path, ".yaml")
		t.Run(filepath.Base(name), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			r, err := Convert([]Input{{filepath.Base(path), data}}, Options{Namespace: "edge", Selector: map[string]string{"app": "gateway"}})
			if err != nil {
				t.Fatal(err)
			}
			var told strings.Builder
			for _, lost := range r.Lost {
				fmt.Fprintf(&told, "%v\n", lost)
			}
			golden.Compare(t, name+".golden", told.String()+"---\n"+policiesOf(t, r))
		})
	}
}

const oneLimit = "[{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]"

func TestWhatTheServiceDoesNotLoadIsAnErrorWithItsLine(t *testing.T) {
	const head = "domain: d\ndescriptors:\n"
	deep := strings.Repeat("{key: a, descriptors: [", maxDepth) + "{key: a}" + strings.Repeat("]}", maxDepth)
	for name, tc := range map[string]struct{ text, want string }{
		"nothing":               {"# nothing\n", "there is no configuration"},
		"another kind":          {"apiVersion: v1\nkind: Service\n", "there is no configuration"},
		"not YAML":              {"domain: d\n  descriptors: [\n", "f:2: not valid YAML: "},
		"a text":                {"domain", "f:1: the configuration must have fields"},
		"no domain":             {"descriptors: []", "f:1: domain is not set"},
		"no list":               {head + "  key: a", "f:3: descriptors must be a list"},
		"no descriptor":         {head + "- a", "f:3: a descriptor must have fields"},
		"no key":                {head + "- value: a", "f:3: key is not set"},
		"a key that is a list":  {head + "- key: [a]", "f:3: key must be a text"},
		"twice":                 {head + "- {key: a, value: b}\n- {key: a, value: b}", `f:4: key "a" with value "b" is there already, in f:3`},
		"twice in two files":    {head + "- {key: a}\n---\n" + head + "- {key: a}", `f:7: key "a" with value "" is there already, in f:3`},
		"no unit":               {head + "- key: a\n  rate_limit: {requests_per_unit: 1}", `f:4: unit is "": write second`},
		"another unit":          {head + "- key: a\n  rate_limit:\n    unit: fortnight", `f:5: unit is "fortnight"`},
		"unlimited with a unit": {head + "- key: a\n  rate_limit: {unlimited: true, unit: day}", "f:4: unit does not go with unlimited"},
		"no rate limit":         {head + "- key: a\n  rate_limit: 5", "f:4: rate_limit must have fields"},
		"a negative number":     {head + "- key: a\n  rate_limit: {unit: day, requests_per_unit: -1}", "f:4: requests_per_unit must be an integer from 0 to 4294967295"},
		"a flag that is none":   {head + "- key: a\n  shadow_mode: 5", "f:4: shadow_mode must be true or false"},
		"shares no pattern":     {head + "- key: a\n  share_threshold: true", "f:3: share_threshold is for values that end with *"},
		"too deep":              {head + "- " + deep, "f:3: descriptors are nested deeper than the 64 levels"},
		"into itself":           {"domain: d\ndescriptors: &all\n- {key: a, descriptors: *all}\n- {key: b, descriptors: *all}", "f:2: descriptors are within themselves"},
		"merged into itself":    {"domain: d\ndescriptors:\n- &a\n  <<: *a\n  value: b", "f:3: key is not set"},
		"in a ConfigMap":        {"apiVersion: v1\nkind: ConfigMap\ndata:\n  a: |\n    # descriptors\n    domain: d\n    descriptors: 5", "f:7: descriptors must be a list"},
	} {
		t.Run(name, func(t *testing.T) {
			if r, err := Convert([]Input{{"f", []byte(tc.text)}}, Options{}); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %+v, %v; want %s", r, err, tc.want)
			}
		})
	}
}

func TestFilesAreReadAsProgramsWriteThem(t *testing.T) {
	text := "domain: d\r\ndescriptors: " + oneLimit + "\r\n"
	list := `{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "domain: d\ndescriptors: ` + oneLimit + `"}}]}`
	for name, data := range map[string]string{
		"with carriage returns":  text,
		"with a byte order mark": "\uFEFF" + text,
		"with separators":        "---\n" + text + "---\n# nothing\n",
		"as kubectl get -o json": list,
	} {
		r, err := Convert([]Input{{"f", []byte(data)}}, Options{})
		if err != nil || r.Limits() != 1 {
			t.Errorf("%s: got %+v, %v", name, r, err)
		}
	}
}

func TestNamesOfPolicies(t *testing.T) {
	two := []Input{{"a", []byte("domain: Shop_EU\ndescriptors: " + oneLimit)}, {"b", []byte("domain: shop.eu\ndescriptors: " + oneLimit)}}
	for _, tc := range []struct {
		inputs []Input
		name   string
		want   string
	}{
		{two, "", "shop-eu shop-eu-2"},
		{two, "limits", "limits-shop-eu limits-shop-eu-2"},
		{two[:1], "limits", "limits"},
		{[]Input{{"a", []byte("domain: '***'\ndescriptors: " + oneLimit)}}, "", "policy"},
	} {
		r, err := Convert(tc.inputs, Options{Name: tc.name})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, p := range r.Policies {
			names = append(names, p.Name)
		}
		if got := strings.Join(names, " "); got != tc.want {
			t.Errorf("%s: got %s", tc.want, got)
		}
		policiesOf(t, r)
	}
}

// A policy has up to 64 limits, and an override up to 256 values.
func TestManyDescriptors(t *testing.T) {
	const n = 1000
	for name, tc := range map[string]struct {
		text             func(i int) string
		policies, limits int
	}{
		"with limits of their own": {func(i int) string {
			return fmt.Sprintf("- {key: k%d, rate_limit: {unit: day, requests_per_unit: 1}}\n", i)
		}, 16, n},
		"with the same number":           {func(i int) string { return value(i, 5) }, 1, 1},
		"with numbers of their own":      {func(i int) string { return value(i, i+1) }, 15, 1 + n - 63},
		"with limits that have children": {func(i int) string { return value(i, 5) + "  descriptors: [{key: b}]\n" }, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			text := "domain: d\ndescriptors:\n"
			if name != "with limits of their own" {
				text += "- {key: a, rate_limit: {unit: day, requests_per_unit: 0}}\n"
			}
			for i := range n {
				text += tc.text(i)
			}
			r, err := Convert([]Input{{"f", []byte(text)}}, Options{})
			if err != nil || len(r.Lost) > 0 {
				t.Fatal(err, r.Lost)
			}
			policiesOf(t, r)
			if len(r.Policies) != tc.policies || r.Limits() != tc.limits {
				t.Errorf("got %d policies with %d limits", len(r.Policies), r.Limits())
			}
		})
	}
}

func value(i, requests int) string {
	return fmt.Sprintf("- key: a\n  value: v%d\n  rate_limit: {unit: day, requests_per_unit: %d}\n", i, requests)
}

// What no policy can have is told and left out, and the rest is there.
func TestALimitThatNoPolicyCanHaveIsLost(t *testing.T) {
	text := "domain: d\ndescriptors:\n- key: a\n  value: " + strings.Repeat("x", policy.MaxHeaderValue+1) + "\n" +
		"  rate_limit: {unit: day, requests_per_unit: 1}\n- {key: b, rate_limit: {unit: day, requests_per_unit: 1}}\n"
	r, err := Convert([]Input{{"f", []byte(text)}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Lost) != 1 || r.Lost[0].Line != 5 || !strings.Contains(r.Lost[0].Text, "at most 1024 characters") || r.Limits() != 1 {
		t.Errorf("got %d limits, lost %v", r.Limits(), r.Lost)
	}
}

// Whatever a file holds, it is refused or becomes valid policies.
func FuzzConvert(f *testing.F) {
	paths, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Convert([]Input{{"f", data}}, Options{})
		if err == nil && len(r.Policies) > 0 {
			policiesOf(t, r)
		}
	})
}
