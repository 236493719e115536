package match

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// compileLimit compiles a spec of one limit, with its defaults.
func compileLimit(t testing.TB, l policy.Limit) *Limit {
	t.Helper()
	l.Name = "x"
	spec := policy.Spec{Limits: []policy.Limit{l}}
	spec.Default()
	p, err := Compile(&spec)
	if err != nil {
		t.Fatal(err)
	}
	return p.Limits[0]
}

func limitWithKey(t testing.TB, parts ...policy.KeyPart) *Limit {
	t.Helper()
	return compileLimit(t, policy.Limit{Key: parts})
}

func limitWithMatch(t testing.TB, matches ...policy.Match) *Limit {
	t.Helper()
	return compileLimit(t, policy.Limit{Match: matches})
}

func expressionMatch(source string) policy.Match { return policy.Match{Expression: source} }

func TestALimitWithoutMatchIsForEveryRequest(t *testing.T) {
	got := compileLimit(t, policy.Limit{}).Evaluate(&Request{Method: "GET", Path: "/"})
	if diff := cmp.Diff(Outcome{Verdict: Count, Key: "*", Override: NoOverride, Cost: 1}, got); diff != "" {
		t.Error(diff)
	}
}

func TestAnyMatchAndNoExceptAppliesTheLimit(t *testing.T) {
	methods := func(m ...string) policy.Match { return policy.Match{Methods: m} }
	for _, c := range []struct {
		name          string
		match, except []policy.Match
		want          Verdict
	}{
		{"one of several matches", []policy.Match{methods("PUT"), methods("POST")}, nil, Count},
		{"no match", []policy.Match{methods("PUT"), methods("GET")}, nil, Skip},
		{"excepted", nil, []policy.Match{methods("GET"), methods("POST")}, Skip},
		{"another is excepted", nil, []policy.Match{methods("GET")}, Count},
		{"matched and excepted", []policy.Match{methods("POST")}, []policy.Match{methods("POST")}, Skip},
		{"all conditions of a match", []policy.Match{{Methods: []string{"POST"}, Expression: "request.path == '/a'"}}, nil, Count},
		{"one condition of two", []policy.Match{{Methods: []string{"POST"}, Expression: "request.path == '/b'"}}, nil, Skip},
	} {
		l := compileLimit(t, policy.Limit{Match: c.match, Except: c.except})
		if got := l.Evaluate(&Request{Method: "POST", Path: "/a"}); got.Verdict != c.want || got.Err != nil {
			t.Errorf("%s: got %+v, want verdict %d", c.name, got, c.want)
		}
	}
}

func TestWhatCannotBeEvaluatedFallsToTheSafeSide(t *testing.T) {
	const fails = "int(request.headers['x-number']) > 1"
	key := func(source string) []policy.KeyPart { return []policy.KeyPart{{Expression: source}} }
	long := &Request{Method: "GET", Path: "/" + strings.Repeat("a", MaxInput)}
	normal := &Request{Method: "GET", Path: "/"}
	for _, c := range []struct {
		name  string
		limit policy.Limit
		r     *Request
		want  Outcome // Err is compared by its text
		fault string
	}{
		{
			"a match applies",
			policy.Limit{Match: []policy.Match{expressionMatch(fails)}}, normal,
			Outcome{Verdict: Count, Key: "*", Override: NoOverride, Cost: 1}, "limits[0].match[0].expression",
		},
		{
			"a match whose other conditions do not hold does not apply",
			policy.Limit{Match: []policy.Match{{Methods: []string{"POST"}, Expression: fails}}}, normal,
			Outcome{Override: NoOverride}, "",
		},
		{
			"a negated failing match applies as well",
			policy.Limit{Match: []policy.Match{expressionMatch("!(" + fails + ")")}}, normal,
			Outcome{Verdict: Count, Key: "*", Override: NoOverride, Cost: 1}, "limits[0].match[0].expression",
		},
		{
			"an except does not except",
			policy.Limit{Except: []policy.Match{{Methods: []string{"PUT"}}, expressionMatch(fails)}}, normal,
			Outcome{Verdict: Count, Key: "*", Override: NoOverride, Cost: 1}, "limits[0].except[1].expression",
		},
		{
			"a path too long for a regular expression",
			policy.Limit{Match: []policy.Match{{Path: &policy.PathMatch{Type: policy.PathRegularExpression, Value: "/b"}}}}, long,
			Outcome{Verdict: Count, Key: "*", Override: NoOverride, Cost: 1}, "limits[0].match[0].path.value",
		},
		{
			"a path too long to be excepted by a regular expression",
			policy.Limit{Except: []policy.Match{{Path: &policy.PathMatch{Type: policy.PathRegularExpression, Value: "/a+"}}}}, long,
			Outcome{Verdict: Count, Key: "*", Override: NoOverride, Cost: 1}, "limits[0].except[0].path.value",
		},
		{
			"a header too long for a regular expression",
			policy.Limit{Match: []policy.Match{{Headers: []policy.HeaderMatch{{Name: "x-a", Type: policy.HeaderRegularExpression, Value: "b"}}}}},
			&Request{Header: http.Header{"X-A": {strings.Repeat("a", MaxInput), "b"}}},
			Outcome{Verdict: Count, Key: "*", Override: NoOverride, Cost: 1}, "limits[0].match[0].headers[0].value",
		},
		{
			"a key is missing",
			policy.Limit{Key: key("string(int(request.headers['x-number']))")}, normal,
			Outcome{Verdict: Count, Key: "-", Override: NoOverride, Cost: 1}, "limits[0].key[0].expression",
		},
		{
			"a missing key denies",
			policy.Limit{Key: key("string(1/0)"), OnMissingKey: policy.MissingDeny}, normal,
			Outcome{Verdict: Deny, Override: NoOverride}, "limits[0].key[0].expression",
		},
		{
			"a query too long to read",
			policy.Limit{Key: []policy.KeyPart{{QueryParameter: &policy.NamedKey{Name: "a"}}}},
			&Request{RawQuery: "a=1&" + strings.Repeat("b", MaxInput)},
			Outcome{Verdict: Count, Key: "-", Override: NoOverride, Cost: 1}, "limits[0].key[0].queryParameter",
		},
		{
			"cookies too long to read",
			policy.Limit{Key: []policy.KeyPart{{Cookie: &policy.NamedKey{Name: "a"}}}},
			&Request{Header: http.Header{"Cookie": {"a=1", strings.Repeat("b", MaxInput)}}},
			Outcome{Verdict: Count, Key: "-", Override: NoOverride, Cost: 1}, "limits[0].key[0].cookie",
		},
		{
			"the first fault is told",
			policy.Limit{Match: []policy.Match{expressionMatch(fails)}, Key: key("string(1/0)")}, normal,
			Outcome{Verdict: Count, Key: "-", Override: NoOverride, Cost: 1}, "limits[0].match[0].expression",
		},
	} {
		got := compileLimit(t, c.limit).Evaluate(c.r)
		if fault := faultPath(got.Err); fault != c.fault {
			t.Errorf("%s: fault at %q, want %q", c.name, fault, c.fault)
		}
		got.Err = nil
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// faultPath is the path of an evaluation error, or "".
func faultPath(err error) string {
	if fault, ok := errors.AsType[*EvaluationError](err); ok {
		return fault.Path
	}
	return ""
}

func TestTheCostIsANumberOrAnExpressionAndNeverRefunds(t *testing.T) {
	expression := func(source string) *policy.Cost { return &policy.Cost{Expression: source} }
	for _, c := range []struct {
		name  string
		cost  *policy.Cost
		value string // of X-Cost
		want  int64
		fault bool
	}{
		{"none is 1", nil, "", 1, false},
		{"a number", &policy.Cost{Requests: new(int64(7))}, "", 7, false},
		{"zero", &policy.Cost{Requests: new(int64(0))}, "", 0, false},
		{"an expression", expression("int(request.headers['x-cost'])"), "25", 25, false},
		{"an expression of 0", expression("request.method == 'GET' ? 0 : 5"), "", 0, false},
		{"the largest", expression("int(request.headers['x-cost'])"), "9007199254740991", policy.MaxInteger, false},
		{"larger", expression("int(request.headers['x-cost'])"), "9007199254740992", policy.MaxInteger, false},
		{"negative", expression("int(request.headers['x-cost'])"), "-1", 1, true},
		{"no number", expression("int(request.headers['x-cost'])"), "many", 1, true},
		{"a fraction", expression("int(request.headers['x-cost'])"), "1.5", 1, true},
		{"not there", expression("int(request.headers['x-absent'])"), "", 1, true},
		{"not an int at run time", expression("dyn(request.path)"), "", 1, true},
		{"overflow", expression("int(request.headers['x-cost']) * 2"), "9223372036854775807", 1, true},
	} {
		l := compileLimit(t, policy.Limit{Cost: c.cost})
		got := l.Evaluate(&Request{Method: "GET", Path: "/", Header: http.Header{"X-Cost": {c.value}}})
		if got.Cost != c.want || (got.Err != nil) != c.fault {
			t.Errorf("%s: got %+v, want cost %d, fault %v", c.name, got, c.want, c.fault)
		}
	}
}

func TestCompileTellsEveryFaultWithItsPath(t *testing.T) {
	spec := policy.Spec{Limits: []policy.Limit{
		{Match: []policy.Match{
			{Path: &policy.PathMatch{Value: "/ok"}},
			{
				Path:       &policy.PathMatch{Type: policy.PathRegularExpression, Value: "/a)|(b"},
				Headers:    []policy.HeaderMatch{{Name: "a", Value: "b"}, {Name: "a", Type: policy.HeaderRegularExpression, Value: `\8`}},
				Expression: "request.method",
			},
		}},
		{
			Except: []policy.Match{
				{Path: &policy.PathMatch{Type: policy.PathTemplate, Value: "/v1/{id}.json"}},
				{Path: &policy.PathMatch{Type: "Glob", Value: "/*"}},
				{Headers: []policy.HeaderMatch{{Name: "a", Type: "Prefix", Value: "b"}}},
			},
			Key:  []policy.KeyPart{{Method: &struct{}{}}, {Expression: "1"}, {}},
			Cost: &policy.Cost{Expression: "'a'"},
		},
		{Cost: &policy.Cost{}},
	}}
	spec.Default()
	_, err := Compile(&spec)
	want := policy.Errors{
		{Path: "limits[0].match[1].path.value", Message: "the regular expression is not valid RE2: unexpected ): `/a)|(b`"},
		{Path: "limits[0].match[1].headers[1].value", Message: "the regular expression is not valid RE2: invalid escape sequence: `\\8`"},
		{Path: "limits[0].match[1].expression", Message: "results in string and must result in bool: compare it with something, such as request.method == 'POST'"},
		{Path: "limits[1].except[0].path.value", Message: `segment "{id}.json" is not a parameter: braces enclose a whole segment, such as /v1/users/{id}`},
		{Path: "limits[1].except[1].path.type", Message: `"Glob" is unknown: write Exact, Prefix, Template or RegularExpression`},
		{Path: "limits[1].except[2].headers[0].type", Message: `"Prefix" is unknown: write Exact or RegularExpression`},
		{Path: "limits[1].key[1].expression", Message: "results in int and must result in string: wrap it in string(...)"},
		{Path: "limits[1].key[2]", Message: "is empty: set one of clientIP, header, cookie, queryParameter, path, method and expression"},
		{Path: "limits[1].cost.expression", Message: "results in string and must result in int: wrap it in int(...), or use numbers without a fraction"},
		{Path: "limits[2].cost", Message: "is empty: set requests or expression"},
	}
	if diff := cmp.Diff(error(want), err); diff != "" {
		t.Error(diff)
	}
}
