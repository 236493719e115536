package match

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func mustCompile(t testing.TB, source string, want resultKind) *expression {
	t.Helper()
	e, err := compileExpression(source, want)
	if err != nil {
		t.Fatalf("compile %s: %v", source, err)
	}
	e.path = "limits[0].match[0].expression"
	return e
}

func TestExpressionsSeeTheRequest(t *testing.T) {
	r := &Request{
		Method: "POST", Host: "Shop.example:8080", Path: "/v1//orders", RawQuery: "page=2&dry",
		Header:   http.Header{"X-Plan": {"free", "gold"}, "Cookie": {`session="a1"; b=2`}},
		ClientIP: netip.MustParseAddr("::ffff:10.0.0.1"),
	}
	for source, want := range map[string]bool{
		"request.method == 'POST'":                                       true,
		"request.path == '/v1/orders'":                                   true,
		"request.host == 'shop.example'":                                 true,
		"request.clientIP.startsWith('10.')":                             true,
		"request.headers['x-plan'] == 'free'":                            true,
		"request.headers['X-Plan'] == 'free'":                            true,
		"request.headers['host'] == 'shop.example'":                      true,
		"request.query['page'] == '2' && int(request.query['page']) > 1": true,
		"request.cookies['session'] == 'a1'":                             true,
		"request.query['absent'] != '1'":                                 true,
		"request.headers['x-absent'] == ''":                              true,
		"request.cookies.absent == ''":                                   true,
		"'absent' in request.query":                                      false,
		"'dry' in request.query":                                         true,
		"'x-plan' in request.headers":                                    true,
		"has(request.query.dry)":                                         true,
		"has(request.query.absent)":                                      false,
		"request.headers.exists(h, h == 'x-plan')":                       true,
		"request.headers.exists(h, request.headers[h].contains('gold'))": false,
		"request.headers.map(h, h) == ['cookie', 'host', 'x-plan']":      true,
		"size(request.cookies) == 2 && request.query.size() == 2":        true,
		"request.path.split('/')[2] == 'orders'":                         true,
		"'X-PLAN'.lowerAscii() in request.headers":                       true,
		"request.path.matches('^/v[0-9]+/')":                             true,
		"request.method in ['POST', 'PUT']":                              true,
		"type(request.query) == map":                                     true,
		"dyn(request.method) == 'POST'":                                  true,
	} {
		got, fault := evaluate[bool](mustCompile(t, source, boolResult), r)
		if fault != nil || got != want {
			t.Errorf("%s is %v, %v", source, got, fault)
		}
	}
}

func TestAnUnknownClientAddressIsAnEmptyString(t *testing.T) {
	got, fault := evaluate[bool](mustCompile(t, "request.clientIP == '' && request.host == ''", boolResult), &Request{})
	if !got || fault != nil {
		t.Errorf("got %v, %v", got, fault)
	}
}

// These are what a person reads in a policy's status: one line that says where,
// what and what to write instead.
func TestAWrongExpressionIsExplainedInOneLine(t *testing.T) {
	const fields = "write one of request.method, request.path, request.host, request.clientIP, " +
		"request.headers[name], request.query[name] and request.cookies[name]"
	for _, c := range []struct{ source, want string }{
		{"request.metod == 'GET'", "does not compile at column 1: request has no such field, or not in this place; " + fields},
		{"has(request.path)", "does not compile at column 5: request has no such field, or not in this place; " + fields},
		{"method == 'GET'", "does not compile at column 1: undeclared reference to 'method'; only request and the functions of CEL are known, and strings stand in quotes"},
		{"a && b", "does not compile at column 1: undeclared reference to 'a'; only request and the functions of CEL are known, and strings stand in quotes (and 1 more)"},
		{"request.method == 1", "does not compile at column 16: found no matching overload for '_==_' applied to '(string, int)'; both sides need one type: convert with int(...) or string(...)"},
		{"request.headers[1] == ''", "does not compile at column 16: found no matching overload for '_[_]' applied to '(map(string, string), int)'; names stand in quotes, such as request.headers['x-plan']"},
		{"request.headers.x-plan == ''", "does not compile at column 18: found no matching overload for '_-_' applied to '(string, !error!)'; a name with a dash stands in brackets, such as request.headers['x-plan'] (and 1 more)"},
		{"int(request.path", "does not compile at column 17: Syntax error: missing ')' at '<EOF>'; check quotes, brackets and operators (==, !=, &&, ||, in)"},
		{"1 == 1 &&\n request.path = ''", "does not compile at line 2, column 15: Syntax error: token recognition error at: '= '; check quotes, brackets and operators (==, !=, &&, ||, in) (and 1 more)"},
		{"request.path.matches('a(')", "does not compile at column 22: the pattern of matches is not valid RE2: missing closing ): `a(`"},
		{"matches('a', 'x{2000}')", "does not compile at column 14: the pattern of matches is not valid RE2: invalid repeat count: `{2000}`"},
		{"request.path.matches('(a{100}){10}b{100}')", "does not compile at column 22: the pattern of matches is too large: repetitions written out it has 1100 parts, and 1024 are allowed; use + or * for long repetitions"},
		{"request.path.matches(request.query['q'])", "does not compile at column 35: the pattern of matches must be a literal, such as path.matches('^/v[0-9]+/')"},
		{"request.query == {'a': 'b'}", "does not compile at column 15: maps cannot be compared as a whole: compare values, such as request.query['dry'] == '1'"},
		{"{} != request.query", "does not compile at column 4: maps cannot be compared as a whole: compare values, such as request.query['dry'] == '1'"},
		{"[1].all(a, [1].all(b, [1].all(c, true)))", "does not compile at column 30: comprehension exceeds nesting limit; nest at most two of exists, all, map and filter"},
		{strings.Repeat("(", 80) + "true" + strings.Repeat(")", 80), "does not compile: expression recursion limit exceeded: 64; write it with fewer brackets, or as several matches"},
		{strings.Repeat("true||", 300) + "true", "has 1804 bytes, and 1024 are allowed: write it as several matches, or shorter"},
		{"request.method", "results in string and must result in bool: compare it with something, such as request.method == 'POST'"},
		{"request.query", "results in map(string, string) and must result in bool: compare it with something, such as request.method == 'POST'"},
	} {
		_, err := compileExpression(c.source, boolResult)
		if err == nil {
			t.Errorf("%s compiles", c.source)
			continue
		}
		if diff := cmp.Diff(c.want, err.Error()); diff != "" {
			t.Errorf("%.60s (-want +got):\n%s", c.source, diff)
		}
	}
}

func TestKeysAndCostsNeedTheirOwnTypes(t *testing.T) {
	for _, c := range []struct {
		source string
		kind   resultKind
		want   string
	}{
		{"size(request.path)", stringResult, "results in int and must result in string: wrap it in string(...)"},
		{"request.path", intResult, "results in string and must result in int: wrap it in int(...), or use numbers without a fraction"},
		{"1.5", intResult, "results in double and must result in int: wrap it in int(...), or use numbers without a fraction"},
		{"1u", intResult, "results in uint and must result in int: wrap it in int(...), or use numbers without a fraction"},
	} {
		if _, err := compileExpression(c.source, c.kind); err == nil || err.Error() != c.want {
			t.Errorf("%s: got %v, want %s", c.source, err, c.want)
		}
	}
}

func TestMessagesStayShort(t *testing.T) {
	for _, source := range []string{
		"request.path == " + strings.Repeat("'", 1000),
		strings.Repeat("é", 500),
		"request." + strings.Repeat("x", 1000),
		"request.path.matches('" + strings.Repeat("(", 900) + "')",
		"[" + strings.Repeat("[1],", 200) + "'a'] == 1",
		strings.Repeat("\x00", 1000), "\xff\xfe", "",
	} {
		_, err := compileExpression(source, boolResult)
		if err == nil {
			t.Errorf("%.40q compiles", source)
			continue
		}
		if text := err.Error(); len(text) > 400 || strings.ContainsAny(text, "\n\r") {
			t.Errorf("%.40q: %d bytes: %s", source, len(text), text)
		}
	}
}

func TestWhatCannotBeEvaluatedSaysNothingOfTheRequest(t *testing.T) {
	long := strings.Repeat("s", MaxInput+1)
	many := http.Header{}
	for i := range maxHeaders + 1 {
		many.Set(fmt.Sprintf("X-Secret-%d", i), "secret")
	}
	for _, c := range []struct {
		source string
		r      *Request
		want   string
	}{
		{"int(request.headers['x-cost']) > 1", &Request{Header: http.Header{"X-Cost": {"secret"}}}, "the expression fails for this request"},
		{"request.path.split('/')[9] == ''", &Request{Path: "/secret"}, "the expression fails for this request"},
		{"dyn(request.path)", &Request{Path: "/secret"}, "the result has the wrong type"},
		{"dyn(request.query) == dyn(request.query)", &Request{}, "the expression fails for this request"},
		{"request.path == 'x'", &Request{Path: "/" + long}, "input is too long"},
		{"request.headers['x-a'] == 'x'", &Request{Header: http.Header{"X-A": {long}}}, "input is too long"},
		{"request.headers['x-a'] == 'x'", &Request{Header: many}, "input is too long"},
		{"request.query['a'] == 'x'", &Request{RawQuery: long}, "input is too long"},
		{"request.path.matches('(?:x{0,30}){30}y')", &Request{Path: "/" + long[:1000]}, "input is too long"},
		{"matches(request.path, '(?:x{0,30}){30}y')", &Request{Path: "/" + long[:1000]}, "input is too long"},
		{"dyn(request.path).matches('(?:x{0,30}){30}y')", &Request{Path: "/" + long[:1000]}, "input is too long"},
		{
			"request.query.all(a, request.path.split('').size() > 1)",
			&Request{Path: "/" + long[:1000], RawQuery: numbered(50)},
			"the expression takes too long for this request",
		},
		{"request.cookies['a'] == 'x'", &Request{Header: http.Header{"Cookie": {long[:MaxInput/2], long[:MaxInput/2], "a=b"}}}, "input is too long"},
		{
			"request.query.all(a, request.query.all(b, a != b || a == b))",
			&Request{RawQuery: numbered(200)},
			"the expression takes too long for this request",
		},
	} {
		got, fault := evaluate[bool](mustCompile(t, c.source, boolResult), c.r)
		if got || fault == nil || fault.Reason != c.want {
			t.Errorf("%s: got %v, %v; want the fault %q", c.source, got, fault, c.want)
			continue
		}
		if want := "evaluate spec.limits[0].match[0].expression: " + c.want; fault.Error() != want {
			t.Errorf("got %q, want %q", fault.Error(), want)
		}
	}
}

// numbered is a query with n parameters.
func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "&p%d=1", i)
	}
	return b.String()
}
