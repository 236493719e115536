package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
)

// decodeStrict reads one JSON document into a struct of this package. Other
// than encoding/json it refuses unknown fields, names in another case and zeros
// written where leaving out means a default, and its Errors name every fault's
// path, list index included, relative to the document.
func decodeStrict(data []byte, into any) error {
	document, err := parse(data)
	if err != nil {
		return err
	}
	var s shape
	s.check("", document, reflect.TypeOf(into).Elem())
	if len(s.faults) > 0 {
		return s.faults
	}
	return json.Unmarshal(data, into)
}

func parse(data []byte) (any, error) {
	var document any
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&document); err != nil {
		return nil, fmt.Errorf("not a JSON document: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("unexpected data after the JSON document")
	}
	return document, nil
}

// shape collects where a document does not have the shape of a Go type.
type shape struct{ faults Errors }

var durationType = reflect.TypeFor[Duration]()

// check compares a value with the type it will be decoded into. It knows the
// kinds of types that this package's structs are made of. A null is a value
// left out.
func (s *shape) check(path string, value any, t reflect.Type) {
	if value == nil {
		return
	}
	switch {
	case t == durationType:
		s.checkDuration(path, value)
	case t.Kind() == reflect.Pointer:
		s.check(path, value, t.Elem())
	case t.Kind() == reflect.Struct:
		s.checkObject(path, value, t)
	case t.Kind() == reflect.Map:
		s.checkMap(path, value, t.Elem())
	case t.Kind() == reflect.Slice:
		s.checkList(path, value, t.Elem())
	case t.Kind() == reflect.String:
		if _, ok := value.(string); !ok {
			s.faults.Add(path, "must be a string, not %s", describe(value))
		}
	default:
		s.checkInteger(path, value, t.Bits())
	}
}

func (s *shape) checkObject(path string, value any, t reflect.Type) {
	object, ok := value.(map[string]any)
	if !ok {
		s.faults.Add(path, "must be an object, not %s", describe(value))
		return
	}
	fields, present := fieldsOf(t), 0
	for _, f := range fields {
		v, written := object[f.name]
		if !written {
			continue
		}
		present++
		inner := join(path, f.name)
		if f.optional && isZero(v, f.of) {
			s.faults.Add(inner, "must not be %s: give it a value, or leave it out", describe(v))
		} else {
			s.check(inner, v, f.of)
		}
	}
	if present < len(object) {
		s.checkUnknown(path, object, fields)
	}
}

// field is one of a struct, as its JSON has it.
type field struct {
	name     string
	optional bool
	of       reflect.Type
}

// fieldsByType spares each of thousands of definitions the look at tags.
var fieldsByType sync.Map

func fieldsOf(t reflect.Type) []field {
	if known, ok := fieldsByType.Load(t); ok {
		return known.([]field)
	}
	var fields []field
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		fields = append(fields, field{name, strings.Contains(options, "omitempty"), f.Type})
	}
	fieldsByType.Store(t, fields)
	return fields
}

func (s *shape) checkUnknown(path string, object map[string]any, fields []field) {
	var names []string
	for _, f := range fields {
		names = append(names, f.name)
	}
	slices.Sort(names)
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if !slices.Contains(names, name) {
			s.faults.Add(join(path, word(name)), "%s", UnknownField(name, names))
		}
	}
}

// UnknownField says what to write instead of a field that is none of these.
func UnknownField(name string, known []string) string {
	if len(known) == 0 {
		return "unknown field: there are no fields here"
	}
	for _, k := range known {
		if strings.EqualFold(k, name) {
			return "unknown field: write " + k
		}
	}
	remedy := "the fields here are " + strings.Join(known, ", ")
	if i := slices.IndexFunc(known, func(k string) bool { return isOneEditAway(k, name) }); i >= 0 {
		remedy = "perhaps " + known[i] + "; " + remedy
	}
	return "unknown field: " + remedy
}

// isOneEditAway says whether one character is too many, missing or another one.
func isOneEditAway(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	if len(b)-len(a) > 1 {
		return false
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	if len(a) == len(b) {
		return i == len(a) || a[i+1:] == b[i+1:]
	}
	return a[i:] == b[i+1:]
}

func (s *shape) checkMap(path string, value any, element reflect.Type) {
	object, ok := value.(map[string]any)
	if !ok {
		s.faults.Add(path, "must be an object, not %s", describe(value))
		return
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		s.check(fmt.Sprintf("%s[%s]", path, word(name)), object[name], element)
	}
}

func (s *shape) checkList(path string, value any, element reflect.Type) {
	list, ok := value.([]any)
	if !ok {
		s.faults.Add(path, "must be a list, not %s", describe(value))
		return
	}
	for i, v := range list {
		s.check(fmt.Sprintf("%s[%d]", path, i), v, element)
	}
}

func (s *shape) checkDuration(path string, value any) {
	text, ok := value.(string)
	if !ok {
		s.faults.Add(path, "must be a duration with its unit, such as 1m or 500ms, not %s", describe(value))
		return
	}
	if _, err := ParseDuration(text); err != nil {
		s.faults.Add(path, "%v", err)
	}
}

func (s *shape) checkInteger(path string, value any, bits int) {
	number, ok := value.(json.Number)
	if !ok {
		s.faults.Add(path, "must be an integer such as 100, not %s", describe(value))
		return
	}
	switch _, err := strconv.ParseInt(string(number), 10, bits); {
	case errors.Is(err, strconv.ErrRange):
		s.faults.Add(path, "must be an integer of at most %d, not %s", min(int64(MaxInteger), 1<<(bits-1)-1), describe(value))
	case err != nil:
		s.faults.Add(path, "must be an integer, without fraction and exponent, not %s", describe(value))
	}
}

// isZero says whether a value decodes to a type's zero, though not left out.
func isZero(value any, t reflect.Type) bool {
	switch v := value.(type) {
	case string:
		d, err := ParseDuration(v)
		return v == "" || t == durationType && err == nil && d == 0
	case json.Number:
		n, err := v.Int64()
		return err == nil && n == 0 && t.Kind() != reflect.Pointer
	default:
		return false
	}
}

// describe shows a value in a message, cut to a bounded length.
func describe(value any) string {
	switch v := value.(type) {
	case string:
		return "the string " + strconv.Quote(shorten(v))
	case json.Number:
		return shorten(string(v))
	case bool:
		return strconv.FormatBool(v)
	case []any:
		return "a list"
	default:
		return "an object"
	}
}

// shorten cuts what users wrote to a length fit for a message.
func shorten(s string) string {
	const limit = 64
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

// word is what users wrote for a message, without quotation marks where that cannot
// begin a line or steer a terminal.
func word(s string) string {
	s = shorten(s)
	if strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return s
	}
	return strconv.Quote(s)
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
