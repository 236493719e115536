package tallyman

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// maxFileSize bounds a policy file, in bytes.
const maxFileSize = 16 << 20

const (
	apiVersion = "tallyman.dev/v1alpha1"
	kind       = "RateLimitPolicy"
)

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

// readFile compiles every policy of a file. Its error tells all faults.
func readFile(path, namespace, prefix string) ([]*enforced, error) {
	data, err := readAll(path)
	if err != nil {
		return nil, fmt.Errorf("read the policy file: %w", err)
	}
	policies, err := parseFile(data, namespace, prefix)
	if err != nil {
		return nil, fmt.Errorf("policy file %s: %w", path, err)
	}
	return policies, nil
}

func readAll(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err == nil && len(data) > maxFileSize {
		err = fmt.Errorf("%s has more than the %d bytes allowed", path, maxFileSize)
	}
	return data, err
}

func parseFile(data []byte, namespace, prefix string) ([]*enforced, error) {
	var (
		policies []*enforced
		errs     []error
		index    int
	)
	seen := map[string]int{} // namespace/name → document
	for document := range documents(data) {
		index++
		e, err := parseDocument(document, index, namespace, prefix)
		if err != nil {
			errs = append(errs, fmt.Errorf("document %d: %w", index, err))
			continue
		}
		name := e.definition.Namespace + "/" + e.definition.Name
		if first, taken := seen[name]; taken {
			errs = append(errs, fmt.Errorf("document %d: policy %s is in document %d already: rename one", index, name, first))
			continue
		}
		seen[name] = index
		policies = append(policies, e)
	}
	if index == 0 {
		return nil, fmt.Errorf("it has no %s: write at least one", kind)
	}
	slices.SortStableFunc(policies, func(a, b *enforced) int {
		return strings.Compare(a.definition.Name, b.definition.Name)
	})
	return policies, errors.Join(errs...)
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

func parseDocument(document []byte, index int, namespace, prefix string) (*enforced, error) {
	data, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, err
	}
	o, err := parseObject(data)
	if err != nil {
		return nil, err
	}
	m := metadata{Name: fmt.Sprintf("policy-%d", index), Namespace: namespace}
	if len(o.Metadata) > 0 {
		if err := json.Unmarshal(o.Metadata, &m); err != nil {
			return nil, fmt.Errorf("metadata: %w", err)
		}
	}
	e, err := parsePolicy(m, o.Spec, prefix)
	if err != nil {
		return nil, fmt.Errorf("policy %q: %w", m.Name, err)
	}
	return e, nil
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

// parsePolicy compiles one policy under the names that it was given.
func parsePolicy(m metadata, spec []byte, prefix string) (*enforced, error) {
	s, err := policy.DecodeSpec(spec)
	if err != nil {
		return nil, err
	}
	return compile(policy.Definition{Namespace: m.Namespace, Name: m.Name, Generation: m.Generation, Spec: s}, prefix)
}
