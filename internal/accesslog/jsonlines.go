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
	found       []string // JSON, by the mapping's index, for one line; empty for none
	missing     int      // of found
}

func newJSONLines(m Mapping, trustedHops int) *jsonLines {
	return &jsonLines{mapping: m, trustedHops: trustedHops, found: make([]string, len(m))}
}

var errNotJSON = errors.New("the line is not a JSON object")

func (f *jsonLines) parse(line string, e *Entry) error {
	if !f.look(line) {
		return errNotJSON
	}
	e.Request.Method, e.Request.Path = "GET", "/"
	var target, query, client string
	for i, m := range f.mapping {
		value := f.found[i]
		text := textOf(value)
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
			for one := range valuesOf(value) {
				e.addHeader(m.header, textOf(one))
			}
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

// look finds the fields of the mapping in a line, and says whether it is an object.
func (f *jsonLines) look(line string) bool {
	clear(f.found)
	f.missing = len(f.found)
	at := skipSpace(line, 0)
	if at == len(line) || line[at] != '{' || !gjson.Valid(line) {
		return false
	}
	f.find(line, at, "")
	return true
}

// find looks for fields in the object that begins at a place of a line, which is valid,
// and to which the path within leads. A dot in a path leads into an object, or is of a
// name. Of several fields of one name the first counts, since the rest of a line is not
// looked at once there is nothing more to find. It returns where the object ends.
func (f *jsonLines) find(line string, at int, within string) (end int) {
	for at++; f.missing > 0; { // behind the brace
		at = skipSpace(line, at)
		switch line[at] {
		case '}':
			return at + 1
		case ',':
			at++
			continue
		}
		behind := endOfString(line, at)
		colon := skipSpace(line, behind)
		at = f.take(line, skipSpace(line, colon+1), within, textOf(line[at:behind]))
	}
	return at
}

// take takes the value of a field if the mapping has it, and returns where it ends.
func (f *jsonLines) take(line string, at int, within, name string) (end int) {
	whole := len(within) + len(name)
	looked := false
	for i := range f.mapping {
		path := f.mapping[i].path
		isIt := len(path) == whole && f.found[i] == ""
		leadsOn := len(path) > whole && path[whole] == '.' && line[at] == '{' && !looked
		if !isIt && !leadsOn || path[len(within):whole] != name || path[:len(within)] != within {
			continue
		}
		if leadsOn { // all paths that lead there are looked for in one go
			end, looked = f.find(line, at, path[:whole+1]), true
			continue
		}
		end = endOfValue(line, at)
		f.found[i] = line[at:end]
		f.missing--
	}
	if end == 0 {
		end = endOfValue(line, at)
	}
	return end
}
