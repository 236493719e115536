package policyfile

import (
	"bytes"
	"iter"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// document is one of a YAML stream.
type document struct {
	text []byte
	// before is how many lines of the file come before it.
	before int
	// first is the number in the file of the first line that holds something, and
	// last that of the last line.
	first, last int
	// root is the text's, once a line of it was asked for.
	root *yaml.Node
}

// documents are those of a YAML stream that hold something.
func documents(data []byte) iter.Seq[*document] {
	return func(yield func(*document) bool) {
		var d document
		line := 0
		for text := range bytes.Lines(data) {
			if rest, separator := bytes.CutPrefix(text, []byte("---")); separator && isSpace(rest) {
				if d.first > 0 && !yield(&d) {
					return
				}
				d = document{before: line}
				text = rest
			}
			d.text = append(d.text, text...)
			line++
			d.last = line
			if d.first == 0 && isContent(text) {
				d.first = line
			}
		}
		if d.first > 0 {
			yield(&d)
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

// step is a field's name or an index of a path such as spec.limits[0].window.
var step = regexp.MustCompile(`[^.\[\]]+`)

// lineOf is the line of a field, or of the nearest one around it that the
// document has.
func (d *document) lineOf(path string) int {
	if d.root == nil {
		d.root = new(yaml.Node)
		_ = yaml.Unmarshal(d.text, d.root) // what is no YAML has no fields
	}
	if len(d.root.Content) == 0 {
		return d.first
	}
	line, at := d.first, d.root.Content[0]
	for _, name := range step.FindAllString(path, -1) {
		if at.Kind == yaml.AliasNode {
			at = at.Alias
		}
		key, value := child(at, name)
		if key == nil {
			break
		}
		line, at = d.before+key.Line, value
	}
	return line
}

// child finds a field or an item of a node, with the node where it begins.
func child(of *yaml.Node, name string) (begin, value *yaml.Node) {
	switch of.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(of.Content); i += 2 {
			if of.Content[i].Value == name {
				return of.Content[i], of.Content[i+1]
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(of.Content) {
			return of.Content[i], of.Content[i]
		}
	}
	return nil, nil
}
