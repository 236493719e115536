package policyfile

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// Fault is one thing that is wrong with a file.
type Fault struct {
	// File is its path, and Line the line in it, 1 or more.
	File string
	Line int
	// Policy is its name; empty where a document is not even a policy.
	Policy string
	// Err says what is wrong and what to write instead.
	Err error
	// Foreign says that the document is an object of another API group, which
	// is no policy and need not be one.
	Foreign bool
}

// Error is "file:line: policy: what", as editors understand it.
func (f *Fault) Error() string {
	text := f.Err.Error()
	if f.Policy != "" {
		text = fmt.Sprintf("policy %q: %s", f.Policy, text)
	}
	return fmt.Sprintf("%s:%d: %s", f.File, f.Line, text)
}

func (f *Fault) Unwrap() error { return f.Err }

// Faults are all that is wrong with a file, in the order of its documents.
type Faults []*Fault

// Error has a line for each fault.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, fault := range f {
		lines[i] = fault.Error()
	}
	return strings.Join(lines, "\n")
}

// add notes what is wrong with a policy: a fault for each field.
func (f *Faults) add(file string, d *document, policyName string, err error) {
	fields, ok := errors.AsType[policy.Errors](err)
	if !ok {
		*f = append(*f, &Fault{File: file, Line: d.lineOf("metadata.name"), Policy: policyName, Err: err})
		return
	}
	for _, field := range fields {
		line := d.lineOf(strings.TrimSuffix("spec."+field.Path, "."))
		*f = append(*f, &Fault{File: file, Line: line, Policy: policyName, Err: field})
	}
}

var (
	yamlPreamble = regexp.MustCompile(`^(?:error converting YAML to JSON: )?yaml: (?:unmarshal errors:\s+)?(?:line (\d+): )?`)
	// yamlLater are the second error and those after it.
	yamlLater = regexp.MustCompile(`\n\s*line \d+: `)
)

// syntaxError takes the line out of a message of the YAML library.
func (d *document) syntaxError(err error) (line int, plain error) {
	text := err.Error()
	found := yamlPreamble.FindStringSubmatch(text)
	if found == nil {
		return d.first, err
	}
	line = d.first
	if n, err := strconv.Atoi(found[1]); err == nil {
		line = min(d.before+n, d.last) // the library may miss something behind the end
	}
	text = yamlLater.ReplaceAllString(strings.TrimPrefix(text, found[0]), "; ")
	return line, errors.New("not valid YAML: " + text)
}
