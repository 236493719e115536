package accesslog

import (
	"iter"
	"strings"

	"github.com/tidwall/gjson"
)

// What is in here walks over JSON that is known to be valid, and reads no more of it than
// where values end. A library that makes something of every value takes three times as
// long.

func skipSpace(json string, at int) int {
	for at < len(json) && (json[at] == ' ' || json[at] == '\t' || json[at] == '\n' || json[at] == '\r') {
		at++
	}
	return at
}

// endOfValue is where the value ends that begins at a place.
func endOfValue(json string, at int) int {
	switch json[at] {
	case '"':
		return endOfString(json, at)
	case '{', '[':
		return endOfNested(json, at)
	}
	for at < len(json) && json[at] > ' ' && json[at] != ',' && json[at] != '}' && json[at] != ']' {
		at++
	}
	return at
}

// endOfString is behind the next quotation mark that no backslash escapes.
func endOfString(json string, at int) int {
	for begin := at + 1; ; {
		at += 1 + strings.IndexByte(json[at+1:], '"')
		if json[at-1] != '\\' || !isEscaped(json[begin:at]) {
			return at + 1
		}
	}
}

func endOfNested(json string, at int) int {
	for depth := 0; ; at++ {
		switch json[at] {
		case '"':
			at = endOfString(json, at) - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return at + 1
			}
		}
	}
}

// valuesOf are the items of a list, or a value that is none.
func valuesOf(json string) iter.Seq[string] {
	return func(yield func(string) bool) {
		if json == "" || json[0] != '[' {
			yield(json)
			return
		}
		for at := 1; ; {
			at = skipSpace(json, at)
			switch json[at] {
			case ']':
				return
			case ',':
				at++
				continue
			}
			end := endOfValue(json, at)
			if !yield(json[at:end]) {
				return
			}
			at = end
		}
	}
}

// textOf is a text as it is, anything else as it is written, and of a list the first
// item. There is no text of null and of nothing.
func textOf(json string) string {
	if json != "" && json[0] == '[' {
		list := json
		json = ""
		for first := range valuesOf(list) {
			json = first
			break
		}
	}
	switch {
	case json == "null":
		return ""
	case json == "" || json[0] != '"':
		return json
	case strings.IndexByte(json, '\\') < 0:
		return json[1 : len(json)-1]
	default:
		return gjson.Parse(json).String()
	}
}
