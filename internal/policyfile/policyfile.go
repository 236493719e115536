// Package policyfile reads RateLimitPolicies from YAML, without Kubernetes.
//
// It knows the form of the file and no more: whoever reads one says what makes
// a policy acceptable.
package policyfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// maxSize bounds a policy file, in bytes.
const maxSize = 16 << 20

const (
	group      = "tallyman.dev"
	apiVersion = group + "/v1alpha1"
	kind       = "RateLimitPolicy"
)

// Accept takes over a policy, whose spec has its defaults and is valid, or says
// what is wrong with it.
type Accept func(policy.Definition) error

// Read gives every policy of a file to accept, in their order. Policies that
// name no namespace are of the given one. Its error is all Faults of the file, or
// says why it cannot be read; policies may have been accepted before.
func Read(path, namespace string, accept Accept) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read the policy file: %w", err)
	}
	defer f.Close()
	data, err := ReadAll(f)
	if err != nil {
		return fmt.Errorf("read the policy file: %w", err)
	}
	return Parse(path, data, namespace, accept)
}

// ReadAll reads the text of a file for Parse, and of one that is too large no more
// than Parse needs to say so.
func ReadAll(in io.Reader) ([]byte, error) {
	return io.ReadAll(io.LimitReader(in, maxSize+1))
}

// Parse is Read for the text of a file, whose name is told in faults.
func Parse(file string, data []byte, namespace string, accept Accept) error {
	if len(data) > maxSize {
		return Faults{{File: file, Line: 1, Err: fmt.Errorf("the file has more than the %d bytes allowed: split it", maxSize)}}
	}
	data = bytes.TrimPrefix(data, []byte("\uFEFF")) // which some editors write
	r := reader{file: file, namespace: namespace, accept: accept, seen: map[string]int{}}
	for d := range documents(data) {
		r.read(d)
	}
	if r.documents == 0 {
		return Faults{{File: file, Line: 1, Err: fmt.Errorf("it has no %s: write at least one", kind)}}
	}
	if len(r.faults) > 0 {
		return r.faults
	}
	return nil
}

// reader reads the documents of one file.
type reader struct {
	file, namespace string
	accept          Accept
	documents       int            // so far
	seen            map[string]int // namespace/name of a policy → its line
	faults          Faults
}

func (r *reader) read(d *document) {
	r.documents++
	data, err := yaml.YAMLToJSONStrict(d.text)
	if err != nil {
		line, err := d.syntaxError(err)
		r.faults = append(r.faults, &Fault{File: r.file, Line: line, Err: err})
		return
	}
	o, at, err := parseObject(data)
	if err != nil {
		r.faults = append(r.faults, &Fault{File: r.file, Line: d.lineOf(at), Err: err, Foreign: o.isForeign(data)})
		return
	}
	definition, err := o.definition(r.namespace, fmt.Sprintf("policy-%d", r.documents))
	if err == nil {
		err = r.acceptOnce(definition, d)
	}
	if err != nil {
		r.faults.add(r.file, d, definition.Name, err)
	}
}

func (r *reader) acceptOnce(definition policy.Definition, d *document) error {
	name := definition.Namespace + "/" + definition.Name
	if first, taken := r.seen[name]; taken {
		return fmt.Errorf("%s is there already, in line %d: rename one", name, first)
	}
	if err := r.accept(definition); err != nil {
		return err
	}
	r.seen[name] = d.first
	return nil
}

// object is a document of a policy file. Of metadata only the identity is of
// use, and a status is ignored, so that the output of kubectl is taken too.
type object struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   json.RawMessage `json:"metadata"`
	Spec       json.RawMessage `json:"spec"`
	Status     json.RawMessage `json:"status"`
}

type metadata struct {
	Name       string `json:"name"`
	Namespace  string `json:"namespace"`
	Generation int64  `json:"generation"`
}

// parseObject reads a document's outer fields, or says what is wrong with which.
func parseObject(data []byte) (o object, at string, err error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	err = decoder.Decode(&o)
	switch {
	case o.Kind == "":
		return o, "", fmt.Errorf("kind is not set: write apiVersion: %s and kind: %s", apiVersion, kind)
	case o.Kind != kind:
		return o, "kind", fmt.Errorf("kind is %q: a policy file holds objects of kind %s only, one a document", o.Kind, kind)
	case o.APIVersion != apiVersion:
		return o, "apiVersion", fmt.Errorf("apiVersion is %q: write %s", o.APIVersion, apiVersion)
	case err != nil:
		at, err := outerFault(err)
		return o, at, err
	case len(o.Spec) == 0:
		return o, "", errors.New("spec is not set")
	}
	return o, "", nil
}

// typeFault says what a field should be.
func typeFault(field string, wrong *json.UnmarshalTypeError) error {
	want := map[reflect.Kind]string{reflect.String: "a string", reflect.Int64: "an integer", reflect.Struct: "an object"}
	return fmt.Errorf("%s must be %s, and is of the type %s", field, want[wrong.Type.Kind()], wrong.Value)
}

// isForeign says whether the object, with this text, is of another kind in another
// API group. A List of policies, as kubectl get prints it, is not.
func (o *object) isForeign(data []byte) bool {
	if o.Kind == "" || o.Kind == kind || o.APIVersion == "" || strings.HasPrefix(o.APIVersion, group+"/") {
		return false
	}
	return o.Kind != "List" || !bytes.Contains(data, []byte(`"kind":"`+kind+`"`)) // as YAMLToJSON writes it
}

// outerFault says of a decoder's complaint about an outer field which it is and what to
// write.
func outerFault(err error) (at string, plain error) {
	_, quoted, isUnknown := strings.Cut(err.Error(), "unknown field ")
	name, unquoting := strconv.Unquote(quoted)
	if !isUnknown || unquoting != nil {
		return "", err
	}
	return name, fmt.Errorf("%q: %s", name, policy.UnknownField(name, []string{"apiVersion", "kind", "metadata", "spec", "status"}))
}

// definition reads the policy. Its name is there even if there is an error.
func (o *object) definition(namespace, name string) (policy.Definition, error) {
	d := policy.Definition{Namespace: namespace, Name: name}
	m := metadata{Name: name, Namespace: namespace}
	if len(o.Metadata) > 0 {
		err := json.Unmarshal(o.Metadata, &m)
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return d, typeFault(strings.TrimSuffix("metadata."+wrong.Field, "."), wrong)
		}
		if err != nil {
			return d, fmt.Errorf("metadata: %w", err)
		}
	}
	d.Namespace, d.Name, d.Generation = m.Namespace, m.Name, m.Generation
	var err error
	d.Spec, err = policy.DecodeSpec(o.Spec)
	return d, err
}
