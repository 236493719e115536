package convert

import (
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// field is one of a mapping.
type field struct {
	name  *yaml.Node
	value *yaml.Node
}

// object calls for each field of a mapping what is known to take it, and tells those
// that nothing takes. It says whether the node is a mapping.
func (p *parser) object(n *yaml.Node, what string, take map[string]func(*yaml.Node)) bool {
	if n.Kind != yaml.MappingNode {
		p.fail(n, "%s must have fields, such as %s", what, strings.Join(slices.Sorted(maps.Keys(take)), ", "))
		return false
	}
	for _, f := range fieldsOf(n) {
		switch read := take[f.name.Value]; {
		case read == nil:
			p.lose(f.name, "the field %q is not known, and has no effect here: those of %s are %s",
				f.name.Value, what, strings.Join(slices.Sorted(maps.Keys(take)), ", "))
		case !isNull(f.value):
			read(f.value)
		}
	}
	return true
}

// maxMerges is how deep mappings are merged into each other. A mapping can be merged
// into itself.
const maxMerges = 4

// fieldsOf are those of a mapping, and of what is merged into it (<<); of anything
// else there are none.
func fieldsOf(n *yaml.Node) []field { return fieldsWithin(n, maxMerges) }

func fieldsWithin(n *yaml.Node, merges int) (fields []field) {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	own := map[string]bool{}
	var merged []field
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], resolve(n.Content[i+1])
		if name.Tag != "!!merge" {
			own[name.Value] = true
			fields = append(fields, field{name, value})
			continue
		}
		from := []*yaml.Node{value}
		if value.Kind == yaml.SequenceNode {
			from = value.Content
		}
		for _, one := range from {
			if merges > 0 {
				merged = append(merged, fieldsWithin(resolve(one), merges-1)...)
			}
		}
	}
	for _, f := range merged {
		if !own[f.name.Value] {
			own[f.name.Value] = true
			fields = append(fields, f)
		}
	}
	return fields
}

// child is a field's value; nil if there is none.
func child(n *yaml.Node, name string) *yaml.Node {
	for _, f := range fieldsOf(n) {
		if f.name.Value == name {
			return f.value
		}
	}
	return nil
}

// scalarOf is the text of a field, empty if there is none.
func scalarOf(n *yaml.Node, name string) string {
	if c := child(n, name); c != nil && c.Kind == yaml.ScalarNode {
		return c.Value
	}
	return ""
}

// resolve is the node that an alias stands for.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }
