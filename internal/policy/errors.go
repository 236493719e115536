package policy

import (
	"fmt"
	"strings"
)

// FieldError is one fault of a spec.
type FieldError struct {
	// Path of the field below spec, such as limits[0].window; empty for spec
	// itself.
	Path string
	// Message says what is wrong and what to write instead.
	Message string
}

func (e FieldError) Error() string {
	return strings.TrimSuffix("spec."+e.Path, ".") + ": " + e.Message
}

// Errors is every fault found, in the order of the spec.
type Errors []FieldError

// maxShownErrors bounds a message that ends in logs and in conditions.
const maxShownErrors = 16

func (e Errors) Error() string {
	shown := make([]string, min(len(e), maxShownErrors))
	for i := range shown {
		shown[i] = e[i].Error()
	}
	if more := len(e) - len(shown); more > 0 {
		shown = append(shown, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(shown, "; ")
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
