package view

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/operator"
)

// object is a policy with a spec in YAML.
func object(t *testing.T, name string, generation int64, spec string) *v1alpha1.RateLimitPolicy {
	t.Helper()
	p := &v1alpha1.RateLimitPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: generation}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatal(err)
	}
	return p
}

func shown(t *testing.T, e Explained, s Style) string {
	t.Helper()
	var b strings.Builder
	if err := e.WriteText(&b, s); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// limitOf is one that a sidecar tells of.
func limitOf(name string, change func(*operator.LimitExplanation)) operator.LimitExplanation {
	l := operator.LimitExplanation{
		Policy: "p", Generation: 2, Limit: name, Algorithm: "TokenBucket", Distribution: "Exact", FailurePolicy: "Deny",
		Requests: 10, Capacity: 10, WindowMs: 90_000, Why: "every request",
	}
	change(&l)
	return l
}

// A pod's sidecar answers what it likes.
func TestATerminalObeysNothingThatAPodSays(t *testing.T) {
	const evil = "\x1b[2J\n"
	for name, e := range map[string]operator.Explanation{
		"admitted": {Allowed: true},
		"refused":  {Policy: evil, Limit: evil, Reason: evil},
		"denied":   {Policy: evil, Limit: evil, Reason: "KeyDenied"},
		"degraded": {Allowed: true, Degraded: true, Reason: evil},
		"exempt":   {Allowed: true, Exempt: evil},
	} {
		e.Limits = []operator.LimitExplanation{{
			Policy: evil, Limit: evil, Applies: true, Why: evil, Key: []string{evil}, RedisKey: evil, Reason: evil, Remaining: new(int64(1)),
			Algorithm: evil, Distribution: evil, FailurePolicy: evil,
		}}
		for _, request := range []*operator.Request{nil, {}} {
			got := shown(t, Explain(e, request, nil), Style{})
			if strings.Contains(got, "\x1b") || strings.Contains(got, "\n\n\n") || !strings.Contains(got, `\x1b[2J\n`) {
				t.Errorf("%s: shown is %q", name, got)
			}
		}
	}
	top := Rates{Limits: []LimitRate{{Namespace: evil, Policy: evil, Limit: evil, Rate: Rate{Refused: 1}}}}
	var b strings.Builder
	if err := top.WriteText(&b, TopOptions{Rows: 1, Namespaces: true}); err != nil || strings.Contains(b.String(), "\x1b") {
		t.Errorf("shown is %q, %v", b.String(), err)
	}
	if got, want := Lines("a\n"+evil+"é"), "a\n\\x1b[2J\né"; got != want {
		t.Errorf("lines are %q, want %q", got, want)
	}
}

func TestRulesOfAPodAreExplained(t *testing.T) {
	sources := []Source{
		{Policy: object(t, "p", 2, `{selector: {matchLabels: {app: orders}}, limits: [
			{name: bucket, requests: 10, window: 90s, key: [{clientIP: {}}, {path: {}}, {method: {}}],
				match: [{methods: [GET, PUT], path: {type: Template, value: "/u/{id}"}}, {headers: [{name: X-Plan, value: free}], expression: "true"}],
				except: [{path: {type: Prefix, value: /}}]},
			{name: slots, requests: 10, window: 90s, key: [{cookie: {name: s}}, {queryParameter: {name: q}}, {expression: request.host}]},
			{name: quota, requests: 10, calendar: {period: Month, timeZone: Europe/Berlin}}]}`)},
		{Policy: object(t, "behind", 3, `{selector: {}, limits: []}`)},
		{Policy: object(t, "missing", 1, `{targetRefs: [{kind: Service, name: a}], limits: []}`), SelectedBy: []string{"Service a"}},
		{Policy: object(t, "unknown", 1, `{targetRefs: [{kind: Service, name: b}], limits: []}`), SelectedBy: []string{"Service b"}, Unsure: true},
	}
	sources[2].Policy.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonInvalid, Message: "spec.limits is empty",
	}}
	e := Explain(operator.Explanation{Limits: []operator.LimitExplanation{
		limitOf("bucket", func(l *operator.LimitExplanation) { l.Capacity = 15 }),
		limitOf("slots", func(l *operator.LimitExplanation) { l.Algorithm, l.Shadow = "Concurrency", true }),
		limitOf("quota", func(l *operator.LimitExplanation) { l.Algorithm = "FixedWindow" }),
		limitOf("x", func(l *operator.LimitExplanation) { l.Policy = "behind" }),
		limitOf("x", func(l *operator.LimitExplanation) { l.Policy = "gone" }),
	}}, nil, sources)
	e.Pod = "orders-a"
	const want = `Pod orders-a enforces 5 limits of 3 policies.

POLICY  GEN  LIMIT   RULE                         REQUESTS                                                      COUNTED BY                                            COUNTING            IF THE STORE FAILS  SELECTED BY
p       2    bucket  10 per 1m30s, burst 15       GET|PUT /u/{id} or X-Plan: free where true except /           client address, path, method                          TokenBucket, Exact  Deny                labels app=orders
p       2    slots   10 at a time (shadow)        all                                                           cookie s, query parameter q, expression request.host  Concurrency, Exact  Deny                labels app=orders
p       2    quota   10 per Month, Europe/Berlin  all                                                           all together                                          FixedWindow, Exact  Deny                labels app=orders
behind  2    x       10 per 1m30s                 -                                                             -                                                     TokenBucket, Exact  Deny                all pods
gone    2    x       10 per 1m30s                 -                                                             -                                                     TokenBucket, Exact  Deny                -

note: policy behind has generation 3, and the pod still enforces generation 2
note: policy missing selects the pod, which does not enforce it: Accepted is False (Invalid): spec.limits is empty
note: policy gone is enforced, and does not select the pod any more or is deleted
`
	if diff := cmp.Diff(squeeze(want), squeeze(shown(t, e, Style{}))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// squeeze leaves one space between columns: how wide they are is the table's matter.
func squeeze(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	return strings.Join(lines, "\n")
}

func TestTheAnswerAboutARequestIsASentence(t *testing.T) {
	refusing := func(reason string, change func(*operator.LimitExplanation)) operator.Explanation {
		l := limitOf("l", func(l *operator.LimitExplanation) {
			l.Applies, l.Reason, l.Cost, l.Key, l.Why = true, reason, 1, []string{"al\x1bice"}, "overrides[2]: Deny"
			change(l)
		})
		return operator.Explanation{Reason: reason, Policy: "p", Limit: "l", RetryAfterMs: l.RetryAfterMs, Limits: []operator.LimitExplanation{l}}
	}
	none := func(*operator.LimitExplanation) {}
	const refused = "GET / would be refused by l of policy p: "
	for want, e := range map[string]operator.Explanation{
		refused + "1 of 10 left and it takes 5, again in 400ms.": refusing("LimitExceeded", func(l *operator.LimitExplanation) {
			l.Remaining, l.Cost, l.RetryAfterMs = new(int64(1)), 5, 400
		}),
		refused + "its units are used up.":                                                    refusing("LimitExceeded", none),
		refused + "the limit admits no request at all.":                                       refusing("LimitExceeded", func(l *operator.LimitExplanation) { l.Requests = 0 }),
		refused + "it takes 50, and the limit never has more than 10.":                        refusing("CostExceedsLimit", func(l *operator.LimitExplanation) { l.Cost = 50 }),
		refused + "it lacks what the limit counts by, and onMissingKey is Deny.":              refusing("KeyMissing", none),
		refused + `its key al\x1bice is denied (overrides[2]: Deny).`:                         refusing("KeyDenied", none),
		refused + "the store does not answer, and failurePolicy decides.":                     refusing("StoreUnavailable", none),
		"GET / would be admitted: no limit looks at it, since it is exempt (CORS preflight).": {Allowed: true, Exempt: "CORS preflight"},
		"GET / would be admitted, without the shared count: the store does not answer, and failurePolicy decides.": {
			Allowed: true, Degraded: true, Reason: "StoreUnavailable"},
		"GET / would be refused by l of policy p, without the shared count, since the store does not answer: its units are used up, again in 9s.": {
			Degraded: true, Reason: "LimitExceeded", Policy: "p", Limit: "l", RetryAfterMs: 9000, Limits: []operator.LimitExplanation{limitOf("l", none)}},
		"GET / would be admitted: no limit applies to it.": {Allowed: true, Limits: []operator.LimitExplanation{limitOf("l", none)}},
		"GET / would be admitted: b has least left, 1 of 10.": {Allowed: true, Limits: []operator.LimitExplanation{
			limitOf("a", func(l *operator.LimitExplanation) { l.Applies, l.Allowed, l.Remaining = true, true, new(int64(9)) }),
			limitOf("b", func(l *operator.LimitExplanation) { l.Applies, l.Allowed, l.Remaining = true, true, new(int64(1)) }),
		}},
	} {
		got, _, _ := strings.Cut(shown(t, Explain(e, &operator.Request{}, nil), Style{}), "\n")
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestColorsAreForTerminalsOnly(t *testing.T) {
	e := Explain(operator.Explanation{Reason: "KeyDenied", Policy: "p", Limit: "l"}, &operator.Request{}, nil)
	if text := shown(t, e, Style{Color: true}); !strings.Contains(text, "\x1b[31mwould be refused\x1b[0m") {
		t.Errorf("there is no color in %q", text)
	}
	if text := shown(t, e, Style{}); strings.Contains(text, "\x1b") {
		t.Errorf("there is a color in %q", text)
	}
}
