package match

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

func TestMethodsAreComparedInUpperCase(t *testing.T) {
	l := limitWithMatch(t, policy.Match{Methods: []string{"GET", "POST"}})
	for method, want := range map[string]Verdict{"GET": Count, "POST": Count, "PUT": Skip, "get": Count, "Post": Count, "": Skip} {
		if got := l.Evaluate(&Request{Method: method, Path: "/"}).Verdict; got != want {
			t.Errorf("%q: verdict %d, want %d", method, got, want)
		}
	}
}

func TestPathsAreMatchedByTheirNormalForm(t *testing.T) {
	for _, c := range []struct {
		kind  policy.PathMatchType
		value string
		yes   []string
		no    []string
	}{
		{
			policy.PathExact, "/v1/orders",
			[]string{"/v1/orders", "/v1/orders/", "//v1/./orders", "/v1/x/%2e%2e/orders", "/v1/%6frders", "/v1/orders;a=b"},
			[]string{"/v1/orders/1", "/v1", "/V1/orders", "/v1%2Forders", "/", ""},
		},
		{policy.PathExact, "/", []string{"/", "", "//", "/./", "/x/.."}, []string{"/x"}},
		{policy.PathExact, "/caf%C3%A9/", []string{"/café", "/caf%c3%a9"}, []string{"/cafe"}},
		{
			policy.PathPrefix, "/v1",
			[]string{"/v1", "/v1/", "/v1/a/b", "/v1;x/a", "/public/../v1/a"},
			[]string{"/v10", "/v1.0", "/v", "/", "/v2/v1", "/v1/../v2"},
		},
		{policy.PathPrefix, "/v1/", []string{"/v1", "/v1/a"}, []string{"/v10"}},
		{policy.PathPrefix, "/", []string{"/", "", "/a", "*"}, nil},
		{
			policy.PathTemplate, "/v1/users/{id}",
			[]string{"/v1/users/42", "/v1/users/42/", "/v1/users/a%2Fb", "/v1/users/é"},
			[]string{"/v1/users", "/v1/users/", "/v1/users/42/orders", "/v1/users/..", "/v2/users/42", "/"},
		},
		{
			policy.PathTemplate, "/{a}/b/{c}/d",
			[]string{"/1/b/2/d", "/b/b/b/d"},
			[]string{"/1/b/2", "/1/b/2/d/e", "/1/x/2/d", "/b/2/d"},
		},
		{policy.PathTemplate, "/{any}", []string{"/a"}, []string{"/", "/a/b"}},
		{policy.PathTemplate, "/", []string{"/"}, []string{"/a"}},
		{
			policy.PathRegularExpression, "/v[0-9]+/(orders|carts)",
			[]string{"/v1/orders", "/v22/carts/"},
			[]string{"/v1/orders/1", "/x/v1/orders", "/v1/order"},
		},
		{policy.PathRegularExpression, "/a|/ab", []string{"/a", "/ab"}, []string{"/abc", "x/a"}},
		{policy.PathRegularExpression, `(?i)/A\Q.b`, []string{"/a.B"}, []string{"/axb"}},
		{policy.PathRegularExpression, "(?m)^/a$", []string{"/a"}, []string{"/a%0A/b"}},
	} {
		l := limitWithMatch(t, policy.Match{Path: &policy.PathMatch{Type: c.kind, Value: c.value}})
		check := func(path string, want Verdict) {
			if got := l.Evaluate(&Request{Path: path}); got.Verdict != want || got.Err != nil {
				t.Errorf("%s %s and %q: %+v", c.kind, c.value, path, got)
			}
		}
		for _, path := range c.yes {
			check(path, Count)
		}
		for _, path := range c.no {
			check(path, Skip)
		}
	}
}

func TestHeadersMatchByAnyOfTheirValues(t *testing.T) {
	r := &Request{
		Host: "Shop.Example:8080",
		Path: "/", Header: http.Header{"X-Plan": {"gold", "free"}, "X-Empty": {""}},
	}
	for _, c := range []struct {
		header policy.HeaderMatch
		want   Verdict
	}{
		{policy.HeaderMatch{Name: "X-Plan", Value: "gold"}, Count},
		{policy.HeaderMatch{Name: "x-plan", Value: "free"}, Count},
		{policy.HeaderMatch{Name: "X-PLAN", Value: "Free"}, Skip},
		{policy.HeaderMatch{Name: "X-Plan", Value: "gold, free"}, Skip},
		{policy.HeaderMatch{Name: "X-Absent", Value: ""}, Skip},
		{policy.HeaderMatch{Name: "X-Empty", Value: ""}, Count},
		{policy.HeaderMatch{Name: "Host", Value: "shop.example"}, Count},
		{policy.HeaderMatch{Name: "X-Plan", Type: policy.HeaderRegularExpression, Value: "fr.*"}, Count},
		{policy.HeaderMatch{Name: "X-Plan", Type: policy.HeaderRegularExpression, Value: "re"}, Skip},
		{policy.HeaderMatch{Name: "X-Absent", Type: policy.HeaderRegularExpression, Value: ".*"}, Skip},
	} {
		l := limitWithMatch(t, policy.Match{Headers: []policy.HeaderMatch{c.header}})
		if got := l.Evaluate(r); got.Verdict != c.want || got.Err != nil {
			t.Errorf("%+v: %+v, want verdict %d", c.header, got, c.want)
		}
	}
}

func TestAllHeadersOfAMatchHaveToMatch(t *testing.T) {
	l := limitWithMatch(t, policy.Match{Headers: []policy.HeaderMatch{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}}})
	for _, c := range []struct {
		header http.Header
		want   Verdict
	}{
		{http.Header{"A": {"1"}, "B": {"2"}}, Count},
		{http.Header{"A": {"1"}}, Skip},
		{http.Header{"A": {"1"}, "B": {"1"}}, Skip},
		{nil, Skip},
	} {
		if got := l.Evaluate(&Request{Path: "/", Header: c.header}).Verdict; got != c.want {
			t.Errorf("%v: verdict %d, want %d", c.header, got, c.want)
		}
	}
}

func TestRegularExpressionsHaveABoundedSize(t *testing.T) {
	for expression, want := range map[string]int{
		"":                                 1,
		"/v1/orders":                       10,
		"[a-z0-9]+":                        1,
		"(a|bc)?":                          3,
		"[a-z]{1,63}(?:[.][a-z]{1,63}){3}": 63 + 3*(1+63),
		"(?:(?:a{10}){10}){10}":            1000,
		"a{3,}b{0}":                        4,
	} {
		parsed, err := parseRegexp(expression)
		if err != nil || regexpSize(parsed) != want {
			t.Errorf("%s has size %d, want %d (%v)", expression, regexpSize(parsed), want, err)
		}
	}
	for _, expression := range []string{
		"(?:(?:(?:ab){10}){10}){10}",
		"(?:.{100}x){10}.{15}",
		strings.Repeat("[a-z]", maxRegexpSize+1),
	} {
		if _, err := whole(expression); err == nil || !strings.Contains(err.Error(), "is too large") {
			t.Errorf("%.40s: %v", expression, err)
		}
	}
}
