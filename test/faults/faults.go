// Package faults is the table of what can be wrong with a policy, and what a
// person is told then. Two validators are held to it: the API server with the
// CRD's schema, and internal/policy, which reads files and definitions.
package faults

import (
	_ "embed"
	"encoding/json"
	"maps"
	"testing"

	"sigs.k8s.io/yaml"
)

//go:embed faults.yaml
var table []byte

// Fault is one thing that is wrong with a spec.
type Fault struct {
	Name string `json:"name"`
	// Spec and Limit are laid over a valid spec and its one limit; a null
	// removes a field.
	Spec  map[string]json.RawMessage `json:"spec"`
	Limit map[string]json.RawMessage `json:"limit"`
	// Path below spec, and Message, as internal/policy tells them.
	Path    string `json:"path"`
	Message string `json:"message"`
	// Server is a part of the API server's message; Message when it is empty.
	Server string `json:"server"`
	// ServerPath is the path that the API server names; Path when it is empty.
	ServerPath string `json:"serverPath"`
	// AcceptedByServer is set where no schema can see the fault: the object is
	// stored, and its condition Accepted=False has Message.
	AcceptedByServer bool `json:"acceptedByServer"`
}

// Load reads the table.
func Load(t testing.TB) []Fault {
	t.Helper()
	var all []Fault
	if err := yaml.UnmarshalStrict(table, &all); err != nil {
		t.Fatal(err)
	}
	for i := range all {
		f := &all[i]
		if f.Server == "" {
			f.Server = f.Message
		}
		if f.ServerPath == "" {
			f.ServerPath = f.Path
		}
	}
	return all
}

// JSON is the spec with the fault in it.
func (f *Fault) JSON(t testing.TB) []byte {
	t.Helper()
	limit := overlay(map[string]json.RawMessage{
		"name":     json.RawMessage(`"per-client"`),
		"requests": json.RawMessage(`100`),
		"window":   json.RawMessage(`"1m"`),
	}, f.Limit)
	spec := overlay(map[string]json.RawMessage{
		"targetRefs": json.RawMessage(`[{"kind": "Deployment", "name": "orders"}]`),
		"limits":     json.RawMessage("[" + string(encode(t, limit)) + "]"),
	}, f.Spec)
	return encode(t, spec)
}

func overlay(base, over map[string]json.RawMessage) map[string]json.RawMessage {
	maps.Copy(base, over)
	maps.DeleteFunc(base, func(_ string, value json.RawMessage) bool { return string(value) == "null" })
	return base
}

func encode(t testing.TB, value any) []byte {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
