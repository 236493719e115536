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
	"iter"
	"os"

	"sigs.k8s.io/yaml"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// maxSize bounds a policy file, in bytes.
const maxSize = 16 << 20

const (
	apiVersion = "tallyman.dev/v1alpha1"
	kind       = "RateLimitPolicy"
)

// Accept takes over a policy, whose spec has its defaults and is valid, or says
// what is wrong with it.
type Accept func(policy.Definition) error

// Read gives every policy of a file to accept, in their order. Policies that
// name no namespace are of the given one. Its error tells all faults, each with
// its document; policies may have been accepted before.
func Read(path, namespace string, accept Accept) error {
	data, err := readAll(path)
	if err != nil {
		return fmt.Errorf("read the policy file: %w", err)
	}
	if err := Parse(data, namespace, accept); err != nil {
		return fmt.Errorf("policy file %s: %w", path, err)
	}
	return nil
}

func readAll(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err == nil && len(data) > maxSize {
		err = fmt.Errorf("%s has more than the %d bytes allowed", path, maxSize)
	}
	return data, err
}

// Parse is Read for the text of a file.
func Parse(data []byte, namespace string, accept Accept) error {
	var errs []error
	index := 0
	seen := map[string]int{} // namespace/name → document
	for document := range documents(data) {
		index++
		d, err := parseDocument(document, index, namespace)
		if err == nil {
			err = acceptOnce(d, index, seen, accept)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("document %d: %w", index, err))
		}
	}
	if index == 0 {
		return fmt.Errorf("it has no %s: write at least one", kind)
	}
	return errors.Join(errs...)
}

func acceptOnce(d policy.Definition, index int, seen map[string]int, accept Accept) error {
	name := d.Namespace + "/" + d.Name
	if first, taken := seen[name]; taken {
		return fmt.Errorf("policy %s is in document %d already: rename one", name, first)
	}
	if err := accept(d); err != nil {
		return fmt.Errorf("policy %q: %w", d.Name, err)
	}
	seen[name] = index
	return nil
}

// documents are those of a YAML stream that hold something. Each is preceded
// by empty lines, so that its line numbers are the file's.
func documents(data []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		var document []byte
		line, holds := 0, false
		for text := range bytes.Lines(data) {
			if rest, separator := bytes.CutPrefix(text, []byte("---")); separator && isSpace(rest) {
				if holds && !yield(document) {
					return
				}
				document, holds = bytes.Repeat([]byte("\n"), line), false
				text = rest
			}
			document = append(document, text...)
			holds = holds || isContent(text)
			line++
		}
		if holds {
			yield(document)
		}
	}
}

// isSpace says whether a document's separator ends here.
func isSpace(rest []byte) bool {
	return len(rest) == 0 || bytes.ContainsRune([]byte(" \t\r\n"), rune(rest[0]))
}

// isContent says whether a line is more than space, comment or end of document.
func isContent(line []byte) bool {
	line = bytes.TrimSpace(line)
	return len(line) > 0 && line[0] != '#' && string(line) != "..."
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

func parseDocument(document []byte, index int, namespace string) (policy.Definition, error) {
	var none policy.Definition
	data, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return none, err
	}
	o, err := parseObject(data)
	if err != nil {
		return none, err
	}
	m := metadata{Name: fmt.Sprintf("policy-%d", index), Namespace: namespace}
	if len(o.Metadata) > 0 {
		if err := json.Unmarshal(o.Metadata, &m); err != nil {
			return none, fmt.Errorf("metadata: %w", err)
		}
	}
	spec, err := policy.DecodeSpec(o.Spec)
	if err != nil {
		return none, fmt.Errorf("policy %q: %w", m.Name, err)
	}
	return policy.Definition{Namespace: m.Namespace, Name: m.Name, Generation: m.Generation, Spec: spec}, nil
}

func parseObject(data []byte) (object, error) {
	var o object
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&o)
	switch {
	case o.Kind == "":
		return o, fmt.Errorf("kind is not set: write apiVersion: %s and kind: %s", apiVersion, kind)
	case o.Kind != kind:
		return o, fmt.Errorf("kind is %q: a policy file holds objects of kind %s only, one a document", o.Kind, kind)
	case o.APIVersion != apiVersion:
		return o, fmt.Errorf("apiVersion is %q: write %s", o.APIVersion, apiVersion)
	case err != nil:
		return o, err
	case len(o.Spec) == 0:
		return o, errors.New("spec is not set")
	}
	return o, nil
}
