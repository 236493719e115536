package v1alpha1_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

// decodeAsStored reads a spec with neither the decoder's defaults nor its rules.
func decodeAsStored(t *testing.T, data []byte) policy.Spec {
	t.Helper()
	var s policy.Spec
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

// The API's types and the contract's are two so that either can be read
// without the other's dependencies. They have one JSON.
func TestTheAPIHasTheFieldsOfTheContract(t *testing.T) {
	compareFields(t, "spec", reflect.TypeFor[v1alpha1.RateLimitPolicySpec](), reflect.TypeFor[policy.Spec]())
}

func compareFields(t *testing.T, path string, api, contract reflect.Type) {
	t.Helper()
	if api == reflect.TypeFor[v1alpha1.Duration]() && contract == reflect.TypeFor[policy.Duration]() {
		return // a string in JSON, both
	}
	if api.Kind() != contract.Kind() {
		t.Errorf("%s is %v in the API and %v in the contract", path, api, contract)
		return
	}
	switch api.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		compareFields(t, path, api.Elem(), contract.Elem())
	case reflect.Struct:
		left, right := jsonFields(api), jsonFields(contract)
		for name := range left {
			if _, ok := right[name]; !ok {
				t.Errorf("%s.%s is in the API only", path, name)
				continue
			}
			compareFields(t, path+"."+name, left[name], right[name])
		}
		for name := range right {
			if _, ok := left[name]; !ok {
				t.Errorf("%s.%s is in the contract only", path, name)
			}
		}
	}
}

func jsonFields(t reflect.Type) map[string]reflect.Type {
	fields := make(map[string]reflect.Type)
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		fields[name] = f.Type
	}
	return fields
}
