package sidecar

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/tallyman-dev/tallyman/internal/respond"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// The parts of an OpenAPI document that the tests look at.
type (
	openAPIDocument struct {
		Paths      map[string]map[string]openAPIOperation
		Components struct {
			Schemas    map[string]openAPISchema
			Parameters map[string]struct {
				Name, In string
				Required bool
				Example  string
			}
		}
	}
	openAPIOperation struct {
		Parameters  []openAPISchema // references
		RequestBody struct{ Content map[string]openAPIContent }
		Responses   map[string]struct{ Content map[string]openAPIContent }
	}
	openAPIContent struct {
		Examples map[string]struct{ Value json.RawMessage }
	}
	openAPISchema struct {
		Ref        string `json:"$ref"`
		Type       string
		Properties map[string]openAPISchema
		Required   []string
		AllOf      []openAPISchema
	}
)

func parseOpenAPI(t *testing.T) (d openAPIDocument) {
	t.Helper()
	if err := yaml.Unmarshal(openAPI, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// all are a schema's properties, those of the schemas that it is all of included.
func (d *openAPIDocument) all(s openAPISchema) map[string]string {
	types := map[string]string{}
	for name, property := range s.Properties {
		types[name] = property.Type
	}
	for _, part := range s.AllOf {
		maps.Copy(types, d.all(d.Components.Schemas[strings.TrimPrefix(part.Ref, "#/components/schemas/")]))
	}
	return types
}

func TestOpenAPIDescribesEveryRoute(t *testing.T) {
	var described []string
	for path, operations := range parseOpenAPI(t).Paths {
		for method := range operations {
			described = append(described, strings.ToUpper(method)+" "+path)
		}
	}
	l, _ := inMemory(t, roomy)
	served := slices.Sorted(maps.Keys(routes(doorsTo(l), 0, silent)))
	slices.Sort(described)
	if diff := cmp.Diff(served, described); diff != "" {
		t.Errorf("routes (-served +described):\n%s", diff)
	}
	w := httptest.NewRecorder()
	newCheckAPI(doorsTo(l), 0, silent).ServeHTTP(w, httptest.NewRequest("GET", "/v1/openapi.yaml", nil))
	if w.Code != 200 || w.Body.String() != string(openAPI) {
		t.Errorf("the description is answered with %d", w.Code)
	}
}

func TestOpenAPIDescribesEveryField(t *testing.T) {
	d := parseOpenAPI(t)
	requests := map[string]any{"Request": checkRequest{}, "Check": checkRequest{}, "Reserve": reserveRequest{}, "Settle": settleRequest{}, "Refund": refundRequest{}}
	responses := map[string]any{"Decision": checkResponse{}, "LimitDecision": checkLimit{}, "Problem": respond.ProblemDetails{}}
	for name, schema := range d.Components.Schemas {
		value, isRequest := requests[name]
		if !isRequest {
			value = responses[name]
		}
		if value == nil {
			t.Errorf("schema %s describes nothing of ours", name)
			continue
		}
		types, required := fields(reflect.TypeOf(value))
		if diff := cmp.Diff(types, d.all(schema)); diff != "" {
			t.Errorf("%s: fields (-ours +described):\n%s", name, diff)
		}
		slices.Sort(schema.Required)
		if diff := cmp.Diff(required, schema.Required); diff != "" && !isRequest {
			t.Errorf("%s: fields that are always there (-ours +described):\n%s", name, diff)
		}
	}
	if len(d.Components.Schemas) != len(requests)+len(responses) {
		t.Errorf("%d schemas are described, want %d", len(d.Components.Schemas), len(requests)+len(responses))
	}
}

// fields are the JSON names of a struct's fields with their types, and those that
// are never left out.
func fields(of reflect.Type) (types map[string]string, always []string) {
	types = map[string]string{}
	for f := range of.Fields() {
		if f.Anonymous {
			embedded, _ := fields(f.Type)
			maps.Copy(types, embedded)
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		types[name] = jsonType(f.Type)
		if options == "" {
			always = append(always, name)
		}
	}
	slices.Sort(always)
	return types, always
}

func jsonType(of reflect.Type) string {
	switch of.Kind() {
	case reflect.Pointer:
		return jsonType(of.Elem())
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int64:
		return "integer"
	case reflect.Slice:
		return "array"
	case reflect.Map:
		return "object"
	default:
		return of.Kind().String()
	}
}

// exampleAPI counts by the policy that the examples are of.
func exampleAPI(t *testing.T) http.Handler {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policies.yaml")
	text := "apiVersion: tallyman.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: orders}\nspec: {selector: {}, " +
		"limits: [{name: per-client, requests: 2, window: 1m, algorithm: SlidingLog, key: [{header: {name: X-Api-Key}}]}]}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := tallyman.New(t.Context(), tallyman.Options{Store: tallyman.MemoryStore, PolicyFile: path})
	if err != nil {
		t.Fatal(err)
	}
	return newCheckAPI(doorsTo(l), 0, silent)
}

func TestExamplesOfOpenAPIAreTrue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time stands still
		d, api := parseOpenAPI(t), exampleAPI(t)
		run := map[string]bool{}
		for _, step := range [][2]string{
			{"/v1/peek", "untouched"}, {"/v1/check", "admitted"}, {"/v1/reserve", "reserved"}, {"/v1/check", "refused"},
			{"/v1/settle", "settled"}, {"/v1/settle", "unknown"}, {"/v1/refund", "refunded"},
		} {
			path, name := step[0], step[1]
			run[path+" "+name] = true
			operation := d.Paths[path]["post"]
			w := ask(api, path, string(operation.RequestBody.Content["application/json"].Examples[name].Value))
			response, described := operation.Responses[fmt.Sprint(w.Code)]
			if !described {
				t.Errorf("%s %s: status %d is not described: %s", path, name, w.Code, w.Body)
				continue
			}
			want := response.Content[w.Header().Get("Content-Type")].Examples[name].Value
			if diff := cmp.Diff(decoded(t, want), decoded(t, w.Body.Bytes())); diff != "" {
				t.Errorf("%s %s (-described +answered):\n%s", path, name, diff)
			}
		}
		for path, operations := range d.Paths {
			for name := range operations["post"].RequestBody.Content["application/json"].Examples {
				if !run[path+" "+name] {
					t.Errorf("example %s of %s is not tested", name, path)
				}
			}
		}
	})
}

// decoded is any JSON, or nil for nothing.
func decoded(t *testing.T, text []byte) (value any) {
	t.Helper()
	if len(text) == 0 {
		return nil
	}
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return value
}

// What is described as required is, and nothing else is.
func TestOpenAPITellsWhatIsRequired(t *testing.T) {
	d := parseOpenAPI(t)
	for name, path := range map[string]string{"Check": "/v1/check", "Reserve": "/v1/reserve", "Settle": "/v1/settle", "Refund": "/v1/refund"} {
		schema, api := d.Components.Schemas[name], exampleAPI(t)
		for _, example := range d.Paths[path]["post"].RequestBody.Content["application/json"].Examples {
			for field := range d.all(schema) {
				body := decoded(t, example.Value).(map[string]any)
				delete(body, field)
				text, err := json.Marshal(body)
				if err != nil {
					t.Fatal(err)
				}
				w := ask(api, path, string(text))
				if refused := w.Code == 400; refused != slices.Contains(schema.Required, field) {
					t.Errorf("%s without %s got %d, required are %q", path, field, w.Code, schema.Required)
				}
			}
		}
	}
	h := http.Header{}
	for _, p := range d.Components.Parameters {
		h.Set(p.Name, p.Example)
	}
	for _, path := range []string{"/v1/auth", "/v1/auth/nginx"} {
		if got := len(d.Paths[path]["get"].Parameters); got != len(h) {
			t.Errorf("%s has %d parameters, want %d", path, got, len(h))
		}
		suffix, api := strings.TrimPrefix(path, "/v1/auth"), exampleAPI(t)
		if resp := askAuth(api, suffix, h); resp.StatusCode != 200 {
			t.Errorf("the example of %s got %d", path, resp.StatusCode)
		}
		for _, p := range d.Components.Parameters {
			lacking := h.Clone()
			lacking.Del(p.Name)
			if resp := askAuth(api, suffix, lacking); p.In != "header" || (resp.StatusCode == 400) != p.Required {
				t.Errorf("%s without %s got %d", path, p.Name, resp.StatusCode)
			}
		}
	}
}
