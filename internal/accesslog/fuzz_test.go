package accesslog

import (
	"encoding/json"
	"strings"
	"testing"
)

// No line makes a parser panic or give out an entry that is none.
func FuzzLines(f *testing.F) {
	for _, line := range []string{
		combinedLine(1), `a - - [29/Nov/2026:00:00:03 +0000] "\x16" 400 - "\"" "" "::1"`,
		`[2026-04-15T20:17:00.310Z] "GET / HTTP/1.1" 200 - 0 0 0 - "-" "-" "-" "-" "-"`,
		`{"time":"2026-11-29T00:00:03Z","path":"/","request":{"method":["GET"]},"remote_addr":"a,b"}`, `{"ts":1e17}`, `{"a":`, "] ", `"`, `\`,
	} {
		f.Add(line)
	}
	mapping, err := ParseMapping("time=ts,method=request.method,path=uri,clientIP=remote_addr,host=request.host,header.Cookie=request.headers.Cookie,query=q")
	if err != nil {
		f.Fatal(err)
	}
	parsers := []parser{clf{combined: true, trustedHops: 1}, clf{}, envoy{}, newJSONLines(mapping, 1)}
	f.Fuzz(func(t *testing.T, line string) {
		_, _ = guess(line)
		for _, p := range parsers {
			var e Entry
			e.reset()
			if p.parse(line, &e) != nil {
				continue
			}
			if e.Micros < earliest || e.Micros >= latest || e.Request.Method == "" || !strings.HasPrefix(e.Request.Path, "/") && e.Request.Path != "*" {
				t.Errorf("%T reads %q as %s", p, line, describe(&e))
			}
			if _, isJSON := p.(*jsonLines); isJSON && !json.Valid([]byte(line)) {
				t.Errorf("takes %q for JSON", line)
			}
		}
	})
}

// No log makes a reader panic, and no line is lost.
func FuzzReader(f *testing.F) {
	for _, text := range []string{combinedLine(1) + "\n\nx", compressed(combinedLine(1)), "\x1f\x8b\b", "\n", `{"time":1,"path":"/"}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		entries, r, err := readAll(strings.NewReader(text), Options{})
		if err != nil {
			return
		}
		if s := r.Stats(); int64(len(entries)) != s.Requests || s.Lines < s.Requests || s.Lines > int64(strings.Count(text, "\n"))+1 && text[0] != 0x1f {
			t.Errorf("%q: %d entries, %+v", text, len(entries), s)
		}
	})
}
