package accesslog

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// fieldsByLibrary finds in an object what find does, by encoding/json.
func fieldsByLibrary(t *testing.T, object, within string, m Mapping, found []string) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(object))
	_, _ = decoder.Token() // the brace
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			t.Fatal(err)
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			t.Fatal(err)
		}
		path := within + name.(string)
		for i := range m {
			if m[i].path == path && found[i] == "" {
				found[i] = string(value)
			}
		}
		if value[0] == '{' {
			fieldsByLibrary(t, string(value), path+".", m, found)
		}
	}
}

// textByLibrary is what textOf is, by encoding/json.
func textByLibrary(t *testing.T, value string) string {
	t.Helper()
	if strings.HasPrefix(value, "[") {
		var list []json.RawMessage
		if err := json.Unmarshal([]byte(value), &list); err != nil {
			t.Fatal(err)
		}
		value = ""
		if len(list) > 0 {
			value = string(list[0])
		}
	}
	switch {
	case value == "null":
		return ""
	case strings.HasPrefix(value, `"`):
		var text string
		if err := json.Unmarshal([]byte(value), &text); err != nil {
			t.Fatal(err)
		}
		return text
	default:
		return value
	}
}

// The walk over a line finds what a library finds that reads all of it.
func FuzzFields(f *testing.F) {
	for _, line := range []string{
		`{"a":1,"b":{"c":"x\"\\","d":[1,"2",{"e":null}]},"a.b":"y","f":{"g":{"h":true}}}`,
		"{ \"a\" : [ ] ,\t\"b\" : { } , \"b\":{\"c\": -1.5e+3 }, \"f.g\":{\"h\":\"\\u00e9\\n\"}}\r",
		`{"\u0061":"\\\\\"","b.c":[[1],2],"f":{"g.h":"z"}}`, `{"a":{"b":1},"a":2,"":{"":{"":3}}}`,
	} {
		f.Add(line)
	}
	var m Mapping
	for _, path := range []string{"a", "a.b", "b", "b.c", "b.d", "f.g", "f.g.h", ".", "..", "b."} {
		m = append(m, mapped{attribute: attrPath, path: path})
	}
	f.Fuzz(func(t *testing.T, line string) {
		p := newJSONLines(m, 0)
		if !p.look(line) || !utf8.ValidString(line) || strings.Contains(strings.ToLower(line), `\ud`) {
			return // halves of surrogate pairs are read differently
		}
		want := make([]string, len(m))
		fieldsByLibrary(t, line, "", m, want)
		if !slices.Equal(p.found, want) {
			t.Errorf("found %q, want %q", p.found, want)
		}
		for _, value := range want {
			if got, want := textOf(value), textByLibrary(t, value); got != want {
				t.Errorf("the text of %s is %q, want %q", value, got, want)
			}
		}
	})
}
