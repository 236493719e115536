package accesslog

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tidwall/gjson"
)

// jsonLines reads a JSON object a line.
type jsonLines struct {
	mapping     Mapping
	trustedHops int
	found       []gjson.Result // by the mapping's index, for one line
}

func newJSONLines(m Mapping, trustedHops int) *jsonLines {
	return &jsonLines{mapping: m, trustedHops: trustedHops, found: make([]gjson.Result, len(m))}
}

var errNotJSON = errors.New("the line is not a JSON object")

func (f *jsonLines) parse(line string, e *Entry) error {
	if !gjson.Valid(line) {
		return errNotJSON
	}
	object := gjson.Parse(line)
	if !object.IsObject() {
		return errNotJSON
	}
	clear(f.found)
	f.find(object, "")
	e.Request.Method, e.Request.Path = "GET", "/"
	var target, query, client string
	for i, m := range f.mapping {
		value := f.found[i]
		text := textOf(first(value))
		var err error
		switch m.attribute {
		case attrTime:
			err = f.readTime(e, text)
		case attrMethod:
			err = e.setMethod(text)
		case attrPath:
			target = text
		case attrRequest:
			err = e.setRequestLine(text)
		case attrQuery:
			query = strings.TrimPrefix(text, "?")
		case attrHost:
			e.addHeader("Host", text)
		case attrClientIP:
			client = text
		case attrHeader:
			addAll(e, m.header, value)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", m.path, err)
		}
	}
	return f.finish(e, target, query, client)
}

// finish sets what depends on more than one field.
func (f *jsonLines) finish(e *Entry, target, query, client string) error {
	if f.mapping.has(attrPath) {
		if err := e.setTarget(target); err != nil {
			return err
		}
	}
	if query != "" {
		e.Request.RawQuery = query
	}
	forwarded, hops := "", f.trustedHops
	if all := e.Request.Header["X-Forwarded-For"]; len(all) > 0 {
		forwarded = all[len(all)-1]
	}
	if strings.Contains(client, ",") { // it is an X-Forwarded-For itself
		client, forwarded, hops = "", client, max(1, hops)
	}
	e.setClient(client, forwarded, hops)
	return nil
}

func (f *jsonLines) readTime(e *Entry, text string) error {
	micros, err := anyTime(text)
	if err != nil {
		return errors.New("there is no time that can be read: RFC 3339, or seconds or milliseconds since 1970")
	}
	return e.setTime(micros)
}

// find looks for the fields of the mapping in an object to which the path within
// leads. A dot in a path leads into an object, or is of a name.
func (f *jsonLines) find(object gjson.Result, within string) {
	object.ForEach(func(key, value gjson.Result) bool {
		name := key.Str
		for i := range f.mapping {
			path := f.mapping[i].path
			end := len(within) + len(name)
			if len(path) < end || path[len(within):end] != name || path[:len(within)] != within {
				continue
			}
			switch {
			case len(path) == end:
				f.found[i] = value
			case path[end] == '.' && value.IsObject():
				// All paths that lead there are looked for in one go.
				f.find(value, path[:end+1])
				return true
			}
		}
		return true
	})
}

// first is a value, or the first of a list.
func first(value gjson.Result) gjson.Result {
	if value.IsArray() {
		return value.Get("0")
	}
	return value
}

// textOf is a text as it is, and a number as it is written.
func textOf(value gjson.Result) string {
	if value.Type == gjson.Number {
		return value.Raw
	}
	return value.String()
}

func addAll(e *Entry, header string, value gjson.Result) {
	if !value.IsArray() {
		e.addHeader(header, textOf(value))
		return
	}
	value.ForEach(func(_, v gjson.Result) bool {
		e.addHeader(header, textOf(v))
		return true
	})
}
