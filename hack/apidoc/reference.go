package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

type schema = apiextensionsv1.JSONSchemaProps

const intro = `# API reference

<!-- Written by make manifests out of config/crd/bases. Change the comments and markers in api/. -->

What the API server checks when a policy is applied; the messages are its own. What it cannot see, such as an expression that does not compile or a target that is missing, the condition ` + "`Accepted`" + ` tells ([troubleshooting](troubleshooting.md#accepted-is-false)). ` + "`kubectl explain ratelimitpolicy.spec.limits`" + ` shows the same descriptions. [concepts.md](concepts.md) and [counting.md](counting.md) tell what it is for.

A duration is up to four numbers with a unit of ` + "`h`, `m`, `s` or `ms`" + `, such as ` + "`1m30s`" + `.
`

// writeVersion writes a kind.
func writeVersion(out io.Writer, crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) {
	names := crd.Spec.Names
	fmt.Fprintf(out, "\n## %s\n\n`apiVersion: %s/%s`, `kind: %s`; kubectl knows it as `%s`, too.\n\n%s\n", names.Kind,
		crd.Spec.Group, v.Name, names.Kind, strings.Join(append([]string{names.Plural}, names.ShortNames...), "` and `"),
		paragraph(v.Schema.OpenAPIV3Schema.Description))
	r := reference{out: out, seen: map[string]string{}}
	for _, part := range []string{"spec", "status"} {
		p := v.Schema.OpenAPIV3Schema.Properties[part]
		r.write(part, &p)
	}
}

// reference writes objects, each under a heading that is its path.
type reference struct {
	out  io.Writer
	seen map[string]string // paths of objects that are written, by their fields
}

// field is one property of an object.
type field struct {
	name     string
	required bool
	*schema
}

// write writes an object, and those within.
func (r *reference) write(path string, s *schema) {
	fmt.Fprintf(r.out, "\n### %s\n\n%s\n\n", path, paragraph(s.Description))
	fmt.Fprintf(r.out, "| field | type | default | |\n|---|---|---|---|\n")
	fields := fieldsOf(s)
	inner := r.name(path, fields)
	for _, f := range fields {
		link := ""
		if _, object := objectOf(path, f); object != nil {
			link = r.seen[identity(object)]
		}
		fmt.Fprintf(r.out, "| `%s` | %s | %s | %s |\n", f.name, typeOf(f.schema, link), defaultOf(f), aboutField(f.schema))
	}
	r.writeRules(s)
	for _, f := range inner {
		r.write(objectOf(path, f))
	}
}

// name gives a path to each object of the fields that has none yet, and returns the
// fields whose paths these are. Of like ones it is the last: match, and not except.
func (r *reference) name(path string, fields []field) (inner []field) {
	of := map[string]field{}
	for _, f := range fields {
		name, object := objectOf(path, f)
		if object == nil {
			continue
		}
		id := identity(object)
		if _, here := of[id]; here || r.seen[id] == "" {
			of[id], r.seen[id] = f, name
		}
	}
	return slices.SortedFunc(maps.Values(of), func(a, b field) int { return strings.Compare(a.name, b.name) })
}

// writeRules writes the rules that are about more than one field.
func (r *reference) writeRules(s *schema) {
	if len(s.XValidations) == 0 {
		return
	}
	fmt.Fprint(r.out, "\nRules:\n\n")
	for _, rule := range s.XValidations {
		of := ""
		if at := strings.TrimPrefix(rule.FieldPath, "."); at != "" {
			of = "`" + at + "`: "
		}
		fmt.Fprintf(r.out, "- %s%s\n", of, escape(rule.Message))
	}
}

// fieldsOf are an object's fields: its name, what is required, and the rest.
func fieldsOf(s *schema) []field {
	var fields []field
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		fields = append(fields, field{name, slices.Contains(s.Required, name), &p})
	}
	slices.SortStableFunc(fields, func(a, b field) int { return cmp.Compare(rank(a), rank(b)) })
	return fields
}

func rank(f field) int {
	switch {
	case f.name == "name":
		return 0
	case f.required:
		return 1
	default:
		return 2
	}
}

// objectOf is the object that a field is, or that it is a list of, with its path; nil
// where there is none with fields of its own.
func objectOf(path string, f field) (string, *schema) {
	name, s := path+"."+f.name, f.schema
	if s.Items != nil {
		name, s = name+"[]", s.Items.Schema
	}
	if len(s.Properties) == 0 {
		return "", nil
	}
	described := *s
	described.Description = cmp.Or(s.Description, f.Description)
	return name, &described
}

// identity is the same for objects with the same fields.
func identity(s *schema) string {
	text, err := json.Marshal([]any{s.Properties, s.Required, s.XValidations})
	if err != nil {
		panic(err) // it was read from text
	}
	return string(text)
}

// typeOf names a type, with a link to the object that it is of.
func typeOf(s *schema, link string) string {
	linked := func(name string) string {
		if link == "" {
			return name
		}
		return fmt.Sprintf("[%s](#%s)", name, anchor(link))
	}
	switch {
	case s.Items != nil:
		return linked("list of " + s.Items.Schema.Type + "s")
	case s.AdditionalProperties != nil:
		return "map of " + s.AdditionalProperties.Schema.Type + "s"
	case s.XIntOrString:
		return "integer or string"
	default:
		return linked(s.Type)
	}
}

// anchor is a heading's, as GitHub has it.
func anchor(heading string) string {
	return strings.Map(func(c rune) rune {
		if strings.ContainsRune(".[]", c) {
			return -1
		}
		return c
	}, strings.ToLower(heading))
}

// defaultOf is what a field is if nothing is written: as its description says, since
// not all defaults are the schema's.
func defaultOf(f field) string {
	for line := range strings.Lines(f.Description) {
		if told, ok := strings.CutPrefix(line, defaultMark); ok {
			return escape(strings.TrimSuffix(strings.TrimSpace(told), "."))
		}
	}
	switch {
	case f.required:
		return "required"
	case f.Default != nil && len(f.Properties) == 0: // an object's are its fields'
		return "`" + string(f.Default.Raw) + "`"
	default:
		return ""
	}
}

const defaultMark = "Default: "

// aboutField is a field's description, and what of its bounds the description leaves to
// the schema.
func aboutField(s *schema) string {
	text := paragraph(s.Description)
	if all := append(boundsOf(s), rulesOf(s)...); len(all) > 0 {
		text += "<br>*" + strings.Join(all, "; ") + "*"
	}
	return strings.ReplaceAll(text, "|", "\\|")
}

// boundsOf are the bounds of a value.
func boundsOf(s *schema) (bounds []string) {
	if len(s.Enum) > 0 {
		var values []string
		for _, v := range s.Enum {
			values = append(values, "`"+strings.Trim(string(v.Raw), `"`)+"`")
		}
		bounds = append(bounds, "one of "+strings.Join(values, ", "))
	}
	if s.Minimum != nil || s.Maximum != nil {
		bounds = append(bounds, span(number(s.Minimum), number(s.Maximum), ""))
	}
	if s.MinLength != nil || s.MaxLength != nil {
		bounds = append(bounds, span(number(s.MinLength), number(s.MaxLength), " characters"))
	}
	if s.MinItems != nil || s.MaxItems != nil {
		bounds = append(bounds, span(number(s.MinItems), number(s.MaxItems), " items"))
	}
	if s.XListType != nil {
		switch *s.XListType {
		case "map":
			bounds = append(bounds, "each `"+strings.Join(s.XListMapKeys, "` and `")+"` once")
		case "set":
			bounds = append(bounds, "each once")
		}
	}
	if s.Pattern != "" {
		bounds = append(bounds, "matches `"+s.Pattern+"`")
	}
	return bounds
}

// rulesOf are the messages of a value's own rules, and of those of a list's items where
// these are no objects. An object's stand with its fields.
func rulesOf(s *schema) (rules []string) {
	if len(s.Properties) > 0 {
		return nil
	}
	for _, rule := range s.XValidations {
		rules = append(rules, escape(rule.Message))
	}
	if s.Items != nil && len(s.Items.Schema.Properties) == 0 {
		for _, rule := range append(boundsOf(s.Items.Schema), rulesOf(s.Items.Schema)...) {
			rules = append(rules, "each: "+rule)
		}
	}
	return rules
}

// number is an integer's text, or empty for none. Bounds of ours are integers.
func number[N int64 | float64](n *N) string {
	if n == nil {
		return ""
	}
	return fmt.Sprintf("%d", int64(*n))
}

// span tells of two bounds, one of which may be missing.
func span(least, most, of string) string {
	switch {
	case least == "":
		return "at most " + most + of
	case most == "":
		return least + of + " or more"
	case least == most:
		return least + of
	default:
		return least + " to " + most + of
	}
}

// paragraph is a description without its line breaks, and without its default, which
// has a column of its own.
func paragraph(description string) string {
	var lines []string
	for line := range strings.Lines(description) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, defaultMark) {
			lines = append(lines, line)
		}
	}
	return escape(strings.Join(lines, " "))
}

// escape keeps what looks like HTML from being taken for it, outside of code.
func escape(text string) string {
	parts := strings.Split(text, "`")
	for i := 0; i < len(parts); i += 2 {
		parts[i] = strings.NewReplacer("<", "&lt;", "*", "\\*").Replace(parts[i])
	}
	return strings.Join(parts, "`")
}
