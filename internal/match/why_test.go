package match

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

func TestAnExplanationNamesTheFieldThatDecided(t *testing.T) {
	limit := policy.Limit{
		Match: []policy.Match{
			{Methods: []string{"PUT"}},
			{Path: &policy.PathMatch{Type: policy.PathPrefix, Value: "/v1"}},
			{Expression: "int(request.query['n']) > 0"},
		},
		Except:       []policy.Match{{Methods: []string{"HEAD"}}, {Path: &policy.PathMatch{Type: policy.PathExact, Value: "/v1/free"}}},
		Key:          []policy.KeyPart{headerKey("x-api-key")},
		OnMissingKey: policy.MissingSkip,
		Overrides: []policy.Override{
			{Keys: []string{"acme"}, Requests: new(int64(1000))},
			{Keys: []string{"internal"}, Action: policy.OverrideExempt},
			{Keys: []string{"banned"}, Action: policy.OverrideDeny},
		},
	}
	l := compileLimit(t, limit)
	with := func(key string) *Request {
		return &Request{Method: "GET", Path: "/v1/orders", Header: http.Header{"X-Api-Key": {key}}}
	}
	for name, c := range map[string]struct {
		r       *Request
		why     string
		verdict Verdict
		values  []string
	}{
		"a match":          {with("a"), "match[1]", Count, []string{"a"}},
		"the first of two": {&Request{Method: "put", Path: "/v1", Header: http.Header{"X-Api-Key": {"a"}}}, "match[0]", Count, []string{"a"}},
		"no match":         {&Request{Method: "GET", Path: "/", RawQuery: "n=0"}, "no match applies", Skip, nil},
		"an exception":     {&Request{Method: "GET", Path: "/v1/free"}, "except[1]", Skip, nil},
		"no key":           {with(""), "match[1], and the request lacks key[0] (onMissingKey: Skip)", Skip, []string{""}},
		"other numbers":    {with("acme"), "overrides[0]: Limit", Count, []string{"acme"}},
		"an exemption":     {with("internal"), "overrides[1]: Exempt", Skip, []string{"internal"}},
		"a denial":         {with("banned"), "overrides[2]: Deny", Deny, []string{"banned"}},
		"what cannot be judged": {
			&Request{Method: "GET", Path: "/", RawQuery: "n=x", Header: http.Header{"X-Api-Key": {"a"}}},
			"match[2] (took the safe side: evaluate spec.limits[0].match[2].expression: the expression fails for this request)", Count, []string{"a"},
		},
	} {
		got := l.Explain(c.r)
		if diff := cmp.Diff(l.Evaluate(c.r), got.Outcome); diff != "" {
			t.Errorf("%s: the outcome is another one than Evaluate's:\n%s", name, diff)
		}
		if got.Why != c.why || got.Verdict != c.verdict || !cmp.Equal(got.Values, c.values) {
			t.Errorf("%s: got %+v, want %q with the values %q", name, got, c.why, c.values)
		}
	}
	if got := compileLimit(t, policy.Limit{}).Explain(&Request{}); got.Why != "every request" || got.Key != "*" || got.Values != nil {
		t.Errorf("a limit of everything: %+v", got)
	}
}
