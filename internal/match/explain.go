package match

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/cel-go/cel"
)

// maxMessage bounds what is quoted of a library's error, in bytes, so that a
// whole message stays near 300.
const maxMessage = 180

// remedies tell what to do about CEL's errors, by how those begin.
var remedies = []struct{ prefix, remedy string }{
	{"undeclared reference to 'request'", "write one of request.method, request.path, request.host, request.clientIP, request.headers[name], request.query[name] and request.cookies[name]"},
	{"undeclared reference to", "only request and the functions of CEL are known, and strings stand in quotes"},
	{"found no matching overload for '_[_]'", "names stand in quotes, such as request.headers['x-plan']"},
	{"found no matching overload for '_-_'", "a name with a dash stands in brackets, such as request.headers['x-plan']"},
	{"found no matching overload for", "both sides need one type: convert with int(...) or string(...)"},
	{"comprehension exceeds nesting limit", "nest at most two of exists, all, map and filter"},
	{"expression recursion limit exceeded", "write it with fewer brackets, or as several matches"},
	{"Syntax error", "check quotes, brackets and operators (==, !=, &&, ||, in)"},
}

// explain turns CEL's errors, which come with a picture of the source over
// several lines, into one line with the first error's column and a remedy.
func explain(all []*cel.Error) error {
	first := all[0]
	message := shorten(strings.ReplaceAll(first.Message, " (in container '')", ""))
	if strings.HasPrefix(message, "undeclared reference to 'request'") {
		message = "request has no such field, or not in this place"
	}
	message += remedy(first.Message)
	if others := len(all) - 1; others > 0 {
		message += fmt.Sprintf(" (and %d more)", others)
	}
	return fmt.Errorf("does not compile%s: %s", position(first), message)
}

func remedy(message string) string {
	for _, r := range remedies {
		if strings.HasPrefix(message, r.prefix) {
			return "; " + r.remedy
		}
	}
	return ""
}

// position counts from 1, and names the line when it is not the first. Some
// errors are about the whole source and have none.
func position(e *cel.Error) string {
	line, column := e.Location.Line(), e.Location.Column()+1
	switch {
	case line < 1:
		return ""
	case line == 1:
		return fmt.Sprintf(" at column %d", column)
	default:
		return fmt.Sprintf(" at line %d, column %d", line, column)
	}
}

// shorten makes one line of at most maxMessage bytes.
func shorten(message string) string {
	message = strings.Join(strings.Fields(message), " ")
	if len(message) <= maxMessage {
		return message
	}
	end := maxMessage
	for !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + "..."
}
