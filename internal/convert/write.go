package convert

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// object is a policy as kubectl takes it.
type object struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`
	Metadata   metadata    `json:"metadata"`
	Spec       policy.Spec `json:"spec"`
}

type metadata struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
}

// WriteYAML writes all policies, with the place that each limit comes from.
func (r *Result) WriteYAML(w io.Writer) error {
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	encoder.CompactSeqIndent()
	for i := range r.Policies {
		document, err := r.Policies[i].node()
		if err != nil {
			return err
		}
		if err := encoder.Encode(document); err != nil {
			return fmt.Errorf("write policy %s: %w", r.Policies[i].Name, err)
		}
	}
	return encoder.Close()
}

// node is the policy as YAML, with its fields in the order of the Go types.
func (p *Policy) node() (*yaml.Node, error) {
	o := object{APIVersion: "tallyman.dev/v1alpha1", Kind: "RateLimitPolicy", Metadata: metadata{p.Name, p.Namespace}, Spec: p.Spec}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(o); err != nil {
		return nil, fmt.Errorf("write policy %s: %w", p.Name, err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text.Bytes(), &document); err != nil {
		return nil, fmt.Errorf("write policy %s: %w", p.Name, err)
	}
	root := document.Content[0]
	layOut(root)
	spec := child(root, "spec")
	if len(p.Spec.Selector.MatchLabels) == 0 {
		const hint = "all pods of the namespace: choose those that answer Envoy"
		for _, f := range fieldsOf(spec) {
			if f.name.Value == "selector" {
				f.value.LineComment = hint
			}
		}
	}
	for i, limit := range child(spec, "limits").Content {
		limit.HeadComment = fmt.Sprintf("%s:%d", p.origins[i].file, p.origins[i].line)
	}
	return &document, nil
}

// inLine says which fields stand in a line, and of which each item does.
var inLine = map[string]struct{ whole, items bool }{
	"metadata": {whole: true}, "selector": {whole: true}, "keys": {whole: true},
	"headers": {items: true}, "key": {items: true},
}

// layOut has YAML look like YAML, where it was read from JSON, with small things in a
// line.
func layOut(n *yaml.Node) {
	n.Style &^= yaml.FlowStyle | yaml.DoubleQuotedStyle
	for _, c := range n.Content {
		layOut(c)
	}
	for _, f := range fieldsOf(n) {
		in := inLine[f.name.Value]
		if in.whole {
			f.value.Style |= yaml.FlowStyle
		}
		for _, item := range f.value.Content {
			if in.items {
				item.Style |= yaml.FlowStyle
			}
		}
	}
}
