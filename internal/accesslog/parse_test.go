package accesslog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// describe shows an entry on one line: time, client, method, host, path, query
// and headers.
func describe(e *Entry) string {
	r := &e.Request
	client := "-"
	if r.ClientIP.IsValid() {
		client = r.ClientIP.String()
	}
	if e.ClientName != "" {
		client = e.ClientName
	}
	out := fmt.Sprintf("%s %s %s host=%q %q ?%q", time.UnixMicro(e.Micros).UTC().Format(time.RFC3339Nano), client, r.Method, r.Host, r.Path, r.RawQuery)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		out += fmt.Sprintf(" %s=%q", name, r.Header[name])
	}
	return out
}

func parseOne(p parser, line string) (string, error) {
	var e Entry
	e.reset()
	if err := p.parse(line, &e); err != nil {
		return "", err
	}
	return describe(&e), nil
}

type lineTest struct{ line, want string }

func checkLines(t *testing.T, p parser, tests map[string]lineTest) {
	t.Helper()
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseOne(p, tc.line)
			if reason, bad := strings.CutPrefix(tc.want, "error: "); bad {
				if err == nil || !strings.Contains(err.Error(), reason) {
					t.Errorf("got %s, %v; want an error with %q", got, err, reason)
				}
			} else if err != nil || got != tc.want {
				t.Errorf("got  %s, %v\nwant %s", got, err, tc.want)
			}
		})
	}
}

func TestCombined(t *testing.T) {
	const end = ` 200 12 "-" "-"`
	checkLines(t, clf{combined: true}, map[string]lineTest{
		"nginx": {
			`203.0.113.9 - - [29/Nov/2026:00:00:03 +0000] "GET /v1/orders?page=2&q=%20a HTTP/1.1" 200 5316 "https://shop.example/?a=b" "Mozilla/5.0 (X11; Linux x86_64)"`,
			`2026-11-29T00:00:03Z 203.0.113.9 GET host="" "/v1/orders" ?"page=2&q=%20a" Referer=["https://shop.example/?a=b"] User-Agent=["Mozilla/5.0 (X11; Linux x86_64)"]`},
		"a zone west":     {`10.0.0.1 - - [28/Feb/2028:23:30:00 -0130] "GET / HTTP/1.1"` + end, `2028-02-29T01:00:00Z 10.0.0.1 GET host="" "/" ?""`},
		"IPv6":            {`2001:db8::7 - - [29/Nov/2026:00:00:03 +0000] "GET / HTTP/2.0"` + end, `2026-11-29T00:00:03Z 2001:db8::7 GET host="" "/" ?""`},
		"IPv4 in IPv6":    {`::ffff:192.0.2.1 - - [29/Nov/2026:00:00:03 +0000] "GET / HTTP/2.0"` + end, `2026-11-29T00:00:03Z 192.0.2.1 GET host="" "/" ?""`},
		"a host's name":   {`in24.inetnebr.com - - [01/Aug/1995:00:00:01 -0400] "GET /shuttle/mcc-05.txt HTTP/1.0"` + end, `1995-08-01T04:00:01Z in24.inetnebr.com GET host="" "/shuttle/mcc-05.txt" ?""`},
		"a client of -":   {`- - - [29/Nov/2026:00:00:03 +0000] "GET / HTTP/2.0"` + end, `2026-11-29T00:00:03Z - GET host="" "/" ?""`},
		"a virtual host":  {`www.example.com:443 203.0.113.9 - - [29/Nov/2026:00:00:03 +0000] "GET / HTTP/1.1"` + end, `2026-11-29T00:00:03Z 203.0.113.9 GET host="" "/" ?""`},
		"a client's port": {`203.0.113.9:5021 - - [29/Nov/2026:00:00:03 +0000] "GET / HTTP/1.1"` + end, `2026-11-29T00:00:03Z 203.0.113.9 GET host="" "/" ?""`},
		"a user's name":   {`10.0.0.1 - Ann [the] B. [29/Nov/2026:00:00:03 +0000] "GET / HTTP/2.0"` + end, `2026-11-29T00:00:03Z 10.0.0.1 GET host="" "/" ?""`},
		"HTTP/0.9":        {`10.0.0.1 - - [29/Nov/2026:00:00:03 +0000] "GET /a b"` + end, `2026-11-29T00:00:03Z 10.0.0.1 GET host="" "/a b" ?""`},
		"a URL":           {`10.0.0.1 - - [29/Nov/2026:00:00:03 +0000] "GET http://a.example:80?x=1 HTTP/1.1"` + end, `2026-11-29T00:00:03Z 10.0.0.1 GET host="a.example:80" "/" ?"x=1"`},
		"CONNECT":         {`10.0.0.1 - - [29/Nov/2026:00:00:03 +0000] "CONNECT a.example:443 HTTP/1.1"` + end, `2026-11-29T00:00:03Z 10.0.0.1 CONNECT host="a.example:443" "/" ?""`},
		"OPTIONS *":       {`10.0.0.1 - - [29/Nov/2026:00:00:03 +0000] "OPTIONS * HTTP/1.1"` + end, `2026-11-29T00:00:03Z 10.0.0.1 OPTIONS host="" "*" ?""`},
		"nginx's escapes": {`10.0.0.1 - - [29/Nov/2026:00:00:03 +0000] "GET /\x22\xC3\xA9 HTTP/1.1" 200 1 "-" "a\x5Cb\"`, "error: combined"},
		"more escapes": {`10.0.0.1 - - [29/Nov/2026:00:00:03 +0000] "GET /\x22\xC3\xA9 HTTP/1.1" 200 1 "-" "a\x5Cb \"c\" \\ \q"`,
			`2026-11-29T00:00:03Z 10.0.0.1 GET host="" "/\"é" ?"" User-Agent=["a\\b \"c\" \\ \\q"]`},
		"quotation marks as they came": {`10.0.0.1 - - [29/Nov/2026:00:00:03 +0000] "GET /a"b HTTP/1.0" 200 1 "-" ""hi""`,
			`2026-11-29T00:00:03Z 10.0.0.1 GET host="" "/a\"b" ?"" User-Agent=["\"hi\""]`},
		"nginx's main": {`10.0.0.1 - - [29/Nov/2026:00:00:03 +0000] "GET / HTTP/1.1" 200 1 "-" "curl" "198.51.100.7, 192.0.2.3"`,
			`2026-11-29T00:00:03Z 10.0.0.1 GET host="" "/" ?"" User-Agent=["curl"] X-Forwarded-For=["198.51.100.7, 192.0.2.3"]`},
		"another field behind": {`10.0.0.1 - - [29/Nov/2026:00:00:03 +0000] "GET / HTTP/1.1" 200 1 "-" "curl" "router@docker" 5ms`,
			`2026-11-29T00:00:03Z 10.0.0.1 GET host="" "/" ?"" User-Agent=["curl"]`},
		"no size":           {`10.0.0.1 - - [29/Nov/2026:00:00:03 +0000] "GET / HTTP/1.1" 304 - "-" "-"`, `2026-11-29T00:00:03Z 10.0.0.1 GET host="" "/" ?""`},
		"no request":        {`10.0.0.1 - - [29/Nov/2026:00:00:03 +0000] "-" 408 0 "-" "-"`, "error: no HTTP request"},
		"TLS":               {`10.0.0.1 - - [29/Nov/2026:00:00:03 +0000] "\x16\x03\x01\x02" 400 0 "-" "-"`, "error: no HTTP request"},
		"no path":           {`10.0.0.1 - - [29/Nov/2026:00:00:03 +0000] "GET index.html HTTP/1.0" 400 0 "-" "-"`, "error: slash"},
		"a time of no year": {`10.0.0.1 - - [29/Nov/0026:00:00:03 +0000] "GET / HTTP/1.1" 200 0 "-" "-"`, "error: 1990"},
		"no such month":     {`10.0.0.1 - - [29/anF/2026:00:00:03 +0000] "GET / HTTP/1.1" 200 0 "-" "-"`, "error: time"},
		"no such day":       {`10.0.0.1 - - [00/Jan/2026:00:00:03 +0000] "GET / HTTP/1.1" 200 0 "-" "-"`, "error: time"},
		"no such hour":      {`10.0.0.1 - - [29/Jan/2026:24:00:03 +0000] "GET / HTTP/1.1" 200 0 "-" "-"`, "error: time"},
		"common":            {`10.0.0.1 - - [29/Nov/2026:00:00:03 +0000] "GET / HTTP/1.1" 200 0`, "error: User-Agent"},
		"cut":               {`10.0.0.1 - - [29/Nov/2026:00:00:03 +0000] "GET / HT`, "error: form"},
		"text":              {`hello world`, "error: form"},
		"a word":            {`hello`, "error: form"},
	})
	checkLines(t, clf{}, map[string]lineTest{
		"common": {`10.0.0.1 - - [29/Nov/2026:00:00:03 +0000] "GET / HTTP/1.1" 200 0`, `2026-11-29T00:00:03Z 10.0.0.1 GET host="" "/" ?""`},
	})
	checkLines(t, clf{combined: true, trustedHops: 2}, map[string]lineTest{
		"behind two proxies": {`10.0.0.1 - - [29/Nov/2026:00:00:03 +0000] "GET / HTTP/1.1" 200 1 "-" "-" "198.51.100.7, 192.0.2.3"`,
			`2026-11-29T00:00:03Z 198.51.100.7 GET host="" "/" ?"" X-Forwarded-For=["198.51.100.7, 192.0.2.3"]`},
		"not by way of both": {`10.0.0.1 - - [29/Nov/2026:00:00:03 +0000] "GET / HTTP/1.1" 200 1 "-" "-" "192.0.2.3"`,
			`2026-11-29T00:00:03Z 10.0.0.1 GET host="" "/" ?"" X-Forwarded-For=["192.0.2.3"]`},
	})
}

func TestEnvoy(t *testing.T) {
	checkLines(t, envoy{}, map[string]lineTest{
		"default": {
			`[2026-04-15T20:17:00.310Z] "POST /api/v1/locations?a=1 HTTP/2" 204 - 154 0 226 100 "10.0.35.28" "nsq2http" "cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "locations" "tcp://10.0.2.1:80"`,
			`2026-04-15T20:17:00.31Z 10.0.35.28 POST host="locations" "/api/v1/locations" ?"a=1" User-Agent=["nsq2http"] X-Forwarded-For=["10.0.35.28"] X-Request-Id=["cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2"]`},
		"Istio": {
			`[2026-11-25T21:26:18.409Z] "GET /status/418 HTTP/1.1" 418 - via_upstream - "-" 0 135 3 1 "203.0.113.5,10.1.2.3" "curl/7.73.0-DEV" "84961386-6d84-929d-98bd-c5aee93b5c88" "httpbin:8000" "127.0.0.1:80" inbound|8000|| 127.0.0.1:41854 10.44.1.27:80 - default`,
			`2026-11-25T21:26:18.409Z 10.1.2.3 GET host="httpbin:8000" "/status/418" ?"" User-Agent=["curl/7.73.0-DEV"] X-Forwarded-For=["203.0.113.5,10.1.2.3"] X-Request-Id=["84961386-6d84-929d-98bd-c5aee93b5c88"]`},
		"nothing known": {
			`[2026-04-15T20:17:00.310Z] "GET / HTTP/1.1" 200 - 0 0 0 - "-" "-" "-" "-" "-"`,
			`2026-04-15T20:17:00.31Z - GET host="" "/" ?""`},
		"no request": {`[2026-04-15T20:17:00.310Z] "- - HTTP/1.1" 400 DPE 0 11 0 - "-" "-" "-" "-" "-"`, "error: no HTTP request"},
		"TCP":        {`[2026-04-15T20:17:00.310Z] "- - -" 0 - 10 20 30 - "-" "-" "-" "-" "10.0.0.1:80"`, "error: no HTTP request"},
		"no time":    {`[yesterday] "GET / HTTP/1.1" 200 - 0 0 0 - "-" "-" "-" "-" "-"`, "error: time"},
		"cut":        {`[2026-04-15T20:17:00.310Z] "GET / HTTP/1.1" 200 - 0 0 0 - "-" "-" "-`, "error: form"},
		"text":       {`hello] world`, "error: form"},
		"brackets":   {`] `, "error: form"},
	})
	checkLines(t, envoy{trustedHops: 2}, map[string]lineTest{
		"behind a balancer": {
			`[2026-04-15T20:17:00.310Z] "GET / HTTP/1.1" 200 - 0 0 0 - "203.0.113.5,10.1.2.3" "-" "-" "-" "-"`,
			`2026-04-15T20:17:00.31Z 203.0.113.5 GET host="" "/" ?"" X-Forwarded-For=["203.0.113.5,10.1.2.3"]`},
	})
}

func TestJSONLines(t *testing.T) {
	mapping, err := ParseMapping("time=ts,method=request.method,path=uri,query=args,host=h,clientIP=remote_addr,header.x-api-key=api_key,header.Accept=request.headers.Accept")
	if err != nil {
		t.Fatal(err)
	}
	checkLines(t, newJSONLines(mapping, 0), map[string]lineTest{
		"nested": {
			`{"ts":"2026-11-29T01:00:03.5+01:00","request":{"method":"PUT","headers":{"Accept":["a","b"]}},"uri":"/a?b=c","remote_addr":"10.0.0.1:443","api_key":"k","h":"a.example"}`,
			`2026-11-29T00:00:03.5Z 10.0.0.1 PUT host="a.example" "/a" ?"b=c" Accept=["a" "b"] X-Api-Key=["k"]`},
		"dots in names": {
			`{"ts":1795910403,"request.method":"PUT","request.headers":{"Accept":"a"},"uri":"/a","args":"?b=c"}`,
			`2026-11-29T00:00:03Z - PUT host="" "/a" ?"b=c" Accept=["a"]`},
		"seconds with a fraction": {`{"ts":1795910403.25,"request":{"method":"GET"},"uri":"/"}`, `2026-11-29T00:00:03.25Z - GET host="" "/" ?""`},
		"seconds as a text":       {`{"ts":"1795910403.25","request":{"method":"GET"},"uri":"/"}`, `2026-11-29T00:00:03.25Z - GET host="" "/" ?""`},
		"milliseconds":            {`{"ts":1795910403250,"request":{"method":"GET"},"uri":"/"}`, `2026-11-29T00:00:03.25Z - GET host="" "/" ?""`},
		"microseconds":            {`{"ts":1795910403250000,"request":{"method":"GET"},"uri":"/"}`, `2026-11-29T00:00:03.25Z - GET host="" "/" ?""`},
		"as nginx writes it":      {`{"ts":"29/Nov/2026:00:00:03 +0000","request":{"method":"GET"},"uri":"/"}`, `2026-11-29T00:00:03Z - GET host="" "/" ?""`},
		"escapes":                 {`{"ts":1795910403,"request":{"method":"GET"},"uri":"\/\u00e9\"","api_key":"-"}`, `2026-11-29T00:00:03Z - GET host="" "/é\"" ?""`},
		"a list of addresses":     {`{"ts":1795910403,"request":{"method":"GET"},"uri":"/","remote_addr":"192.0.2.1, 192.0.2.2"}`, `2026-11-29T00:00:03Z 192.0.2.2 GET host="" "/" ?""`},
		"the first of two":        {`{"ts":1795910403,"request":{"method":"GET"},"uri":"/a","uri":"/b"}`, `2026-11-29T00:00:03Z - GET host="" "/a" ?""`},
		"no time":                 {`{"request":{"method":"GET"},"uri":"/"}`, "error: ts: "},
		"no method":               {`{"ts":1795910403,"uri":"/"}`, "error: request.method: "},
		"no path":                 {`{"ts":1795910403,"request":{"method":"GET"}}`, "error: slash"},
		"too early":               {`{"ts":0,"request":{"method":"GET"},"uri":"/"}`, "error: 1990"},
		"a huge time":             {`{"ts":1e300,"request":{"method":"GET"},"uri":"/"}`, "error: ts: "},
		"a list":                  {`[1]`, "error: JSON"},
		"cut":                     {`{"ts":1795910403,"uri":"/`, "error: JSON"},
	})
}

func TestRequestLinesOfJSON(t *testing.T) {
	checkLines(t, newJSONLines(Mapping{{attribute: attrTime, path: "t"}, {attribute: attrRequest, path: "request"}}, 0), map[string]lineTest{
		"a line":  {`{"t":1795910403,"request":"PUT /a?b=c HTTP/1.1"}`, `2026-11-29T00:00:03Z - PUT host="" "/a" ?"b=c"`},
		"no line": {`{"t":1795910403,"request":"-"}`, "error: no HTTP request"},
	})
}

func TestUsualFieldsAreFound(t *testing.T) {
	for name, tc := range map[string]lineTest{
		"Caddy": {`{"level":"info","ts":1795910403.25,"request":{"remote_ip":"127.0.0.1","remote_port":"4","proto":"HTTP/2.0","method":"GET","host":"localhost","uri":"/a","headers":{"User-Agent":["curl"]}},"status":200}`,
			"time=ts,method=request.method,path=request.uri,host=request.host,clientIP=request.remote_ip,header.User-Agent=request.headers.User-Agent"},
		"Traefik": {`{"ClientHost":"10.0.0.1","RequestMethod":"GET","RequestPath":"/","RequestHost":"a","time":"2026-11-29T00:00:03Z","request_User-Agent":"curl"}`,
			"time=time,method=RequestMethod,path=RequestPath,host=RequestHost,clientIP=ClientHost,header.User-Agent=request_User-Agent"},
		"Envoy": {`{"start_time":"2026-11-29T00:00:03Z","method":"GET","path":"/","authority":"a","x_forwarded_for":"10.0.0.1","user_agent":"curl"}`,
			"time=start_time,method=method,path=path,host=authority,clientIP=x_forwarded_for,header.User-Agent=user_agent"},
		"nginx, the whole line": {`{"time_local":"29/Nov/2026:00:00:03 +0000","remote_addr":"10.0.0.1","request":"GET / HTTP/1.1"}`,
			"time=time_local,request=request,clientIP=remote_addr"},
		"a trace":       {`{"at":"0s","path":"/"}`, "error: --trace"},
		"other names":   {`{"when":1,"what":"/","x":{"y":1}}`, "error: when, what, x.…"},
		"not an object": {`[]`, "error: JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := guess(tc.line)
			if reason, bad := strings.CutPrefix(tc.want, "error: "); bad {
				if err == nil || !strings.Contains(err.Error(), reason) {
					t.Errorf("got %s, %v; want an error with %q", m, err, reason)
				}
			} else if err != nil || m.String() != tc.want {
				t.Errorf("got %s, %v; want %s", m, err, tc.want)
			}
		})
	}
}

func TestMappingsThatAreWrong(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "time=ts",
		"time":                               "has no field",
		"time=":                              "has no field",
		"path=uri":                           "no time",
		"time=a,when=b":                      `"when" is not known`,
		"time=a,header.=b":                   "not known",
		"time=a,time=b":                      "twice",
		"time=a,header.x-a=b,header.X-A=c":   "twice",
		"time=a" + manyHeaders(maxMapping+1): "are allowed",
	} {
		if m, err := ParseMapping(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: got %s, %v; want an error with %q", text, m, err, want)
		}
	}
}

func manyHeaders(n int) string {
	var out strings.Builder
	for i := range n {
		fmt.Fprintf(&out, ",header.X-%d=a", i)
	}
	return out.String()
}

// A key is made of a /64, so that names must differ there.
func TestNamesOfClientsStandForNetworksOfTheirOwn(t *testing.T) {
	seen := map[netip.Prefix]string{}
	for i := range 10_000 {
		name := fmt.Sprintf("host-%d.example", i)
		addr := standIn(name)
		network, err := addr.Prefix(64)
		if err != nil || network.Addr() != addr || addr.As16()[0] != 0xfd || addr != standIn(strings.ToUpper(name)) {
			t.Fatalf("%s stands for %v", name, addr)
		}
		if other, taken := seen[network]; taken {
			t.Fatalf("%s and %s are one", name, other)
		}
		seen[network] = name
	}
}

// Envoy does not escape what clients send. Were each mark looked for its end, a line
// would take seconds, and these hours.
func TestQuotationMarksWithoutAnEndTakeNoTime(t *testing.T) {
	line := `[2026-04-15T20:17:00.310Z] "GET / HTTP/1.1" 200 - ` + strings.Repeat(`"a `, 20_000)
	for range 2000 {
		if err := (envoy{}).parse(line, &Entry{}); !errors.Is(err, errNotEnvoy) {
			t.Fatal(err)
		}
	}
}

// Whatever a valid object holds, the fields are found that a whole decoder finds.
func TestFieldsOfAnyObjectAreFound(t *testing.T) {
	m := Mapping{{path: "a"}, {path: "b.c"}, {path: "b.a.b"}, {path: "c.a"}, {path: "b"}}
	rapid.Check(t, func(t *rapid.T) {
		object := drawObject(t, 3)
		var text bytes.Buffer
		encoder := json.NewEncoder(&text)
		if rapid.Bool().Draw(t, "indented") {
			encoder.SetIndent(" ", "\t")
		}
		if err := encoder.Encode(object); err != nil {
			t.Fatal(err)
		}
		f := newJSONLines(m, 0)
		if !f.look(text.String()) {
			t.Fatalf("%s is no object", text.String())
		}
		for i, one := range m {
			want := any(object)
			for name := range strings.SplitSeq(one.path, ".") {
				within, _ := want.(map[string]any)
				want = within[name]
			}
			var got any
			if f.found[i] != "" {
				if err := json.Unmarshal([]byte(f.found[i]), &got); err != nil {
					t.Fatalf("%s of %s is %s: %v", one.path, text.String(), f.found[i], err)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("%s of %s (-want +got):\n%s", one.path, text.String(), diff)
			}
		}
	})
}

func drawObject(t *rapid.T, depth int) map[string]any {
	object := map[string]any{}
	for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c", `"`, "bc", ""}), rapid.ID).Draw(t, "names") {
		object[name] = drawValue(t, depth)
	}
	return object
}

func drawValue(t *rapid.T, depth int) any {
	kinds := []string{"text", "number", "literal", "list", "object"}
	if depth == 0 {
		kinds = kinds[:3]
	}
	switch rapid.SampledFrom(kinds).Draw(t, "kind") {
	case "text":
		return rapid.SampledFrom([]string{"", "x", `"`, `\`, `\\"`, "{", "]", `a,"b":{`, "é", "\n"}).Draw(t, "text")
	case "number":
		return rapid.Float64Range(-1e20, 1e20).Draw(t, "number")
	case "literal":
		return rapid.SampledFrom([]any{true, false, nil}).Draw(t, "literal")
	case "list":
		list := []any{}
		for range rapid.IntRange(0, 3).Draw(t, "items") {
			list = append(list, drawValue(t, depth-1))
		}
		return list
	default:
		return drawObject(t, depth-1)
	}
}
