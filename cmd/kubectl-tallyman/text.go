package main

import (
	"fmt"
	"unicode/utf8"
)

// checkText refuses values of a flag that are not UTF-8: they are sent as JSON, which
// would make other values of them, and so of another counter.
func checkText(flag string, values ...string) error {
	for _, value := range values {
		if !utf8.ValidString(value) {
			return fmt.Errorf("%s is %.100q, which is not UTF-8: only text can be named", flag, value)
		}
	}
	return nil
}
