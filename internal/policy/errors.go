package policy

import (
	"fmt"
	"strings"
)

// FieldError is one fault of a spec.
type FieldError struct {
	// Path of the field below spec, such as limits[0].window.
	Path string
	// Message says what is wrong and what to write instead.
	Message string
}

func (e FieldError) Error() string { return "spec." + e.Path + ": " + e.Message }

// Errors is every fault found, in the order of the spec.
type Errors []FieldError

func (e Errors) Error() string {
	all := make([]string, len(e))
	for i, err := range e {
		all[i] = err.Error()
	}
	return strings.Join(all, "; ")
}

// Add appends a fault.
func (e *Errors) Add(path, format string, args ...any) {
	*e = append(*e, FieldError{Path: path, Message: fmt.Sprintf(format, args...)})
}

// orNil is a nil error when there is no fault; a nil Errors in an error
// interface would not be.
func (e Errors) orNil() error {
	if len(e) == 0 {
		return nil
	}
	return e
}
