package v1alpha1_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/test/faults"
)

// The table holds P9, and what the vectors gub-12, kua-01 and kua-05 ask of
// admission. Of kua-05 our API has one pair of fields that exclude each other,
// targetRefs and selector: there are no defaults and overrides of whole policies.
func TestTheServerRefusesAFaultAndTellsTheRemedy(t *testing.T) {
	for _, f := range faults.Load(t) {
		t.Run(f.Name, func(t *testing.T) {
			_, err := create(t, f.JSON(t))
			switch {
			case f.AcceptedByServer && err != nil:
				t.Errorf("refused: %v", err)
			case f.AcceptedByServer:
			case err == nil:
				t.Error("accepted")
			case !tells(err, &f):
				t.Errorf("told %v\nwant spec.%s: %s", err, f.ServerPath, f.Server)
			}
		})
	}
}

// tells looks for the fault's path and message in one of the causes. The API
// server's messages put fields' names into back quotes.
func tells(err error, f *faults.Fault) bool {
	path := strings.TrimSuffix("spec."+f.ServerPath, ".")
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		return false
	}
	details := status.ErrStatus.Details
	if details == nil || len(details.Causes) == 0 {
		return strings.Contains(err.Error(), f.Server)
	}
	for _, cause := range details.Causes {
		message := strings.ReplaceAll(cause.Message, "`", "")
		if cause.Field == path && strings.Contains(message, f.Server) {
			return true
		}
	}
	return false
}

// valid are specs at the edges of what is allowed.
var valid = map[string]string{
	"minimal": `{"selector": {}, "limits": [{"name": "a", "requests": 1, "window": "1m"}]}`,
	// C3: a limit of 0 is a choice, and not "no limit".
	"nothing allowed":     `{"selector": {}, "limits": [{"name": "a", "requests": 0, "window": "1m"}]}`,
	"more than 32 bits":   `{"selector": {}, "limits": [{"name": "a", "requests": 4294967296, "window": "1m"}]}`,
	"2^53-1 requests":     `{"selector": {}, "limits": [{"name": "a", "requests": 9007199254740991, "window": "1m"}]}`,
	"the longest window":  `{"selector": {}, "limits": [{"name": "a", "requests": 1, "window": "8784h"}]}`,
	"the shortest window": `{"selector": {}, "limits": [{"name": "a", "requests": 1, "window": "1ms"}]}`,
	"a full log":          `{"selector": {}, "limits": [{"name": "a", "requests": 100000, "window": "1h", "algorithm": "SlidingLog"}]}`,
	"empty lists":         `{"selector": {}, "limits": [{"name": "a", "requests": 1, "window": "1m", "match": [], "except": [], "key": []}]}`,
	"two limits": `{"selector": {}, "limits": [{"name": "a", "requests": 1, "window": "1s"},
		{"name": "b", "requests": 10, "window": "1m"}]}`,
	"all fields": `{
		"targetRefs": [{"kind": "Deployment", "name": "orders"}, {"kind": "Service", "name": "orders"}],
		"enforcement": "Shadow",
		"storeTimeout": "10s",
		"limits": [{
			"name": "per_client.v1", "requests": 100, "window": "1h30m", "algorithm": "TokenBucket", "burst": 150,
			"match": [{
				"methods": ["POST", "M-SEARCH"],
				"path": {"type": "Template", "value": "/v1/users/{id}/orders/{order-id}"},
				"headers": [{"name": "X-Plan", "value": ""}, {"name": "X-Plan", "type": "RegularExpression", "value": "a|b"}],
				"expression": "request.query['dry'] != '1'"}],
			"except": [{"path": {"value": "/"}}, {"path": {"type": "RegularExpression", "value": ".*[.]css"}}],
			"key": [{"clientIP": {}}, {"header": {"name": "X-Api-Key"}}, {"cookie": {"name": "session"}},
				{"queryParameter": {"name": "größe[]"}}, {"path": {}}, {"method": {}}, {"expression": "request.method"}],
			"onMissingKey": "Deny", "cost": {"requests": 0}, "failurePolicy": "Deny",
			"distribution": {"mode": "Leased", "maxIdlePercent": 50}}],
		"response": {"statusCode": 503, "body": "später", "contentType": "text/plain; charset=utf-8", "headers": "Both",
			"retryAfterJitter": "1h"}}`,
	"a calendar": `{"selector": {}, "limits": [{"name": "a", "requests": 1, "calendar": {"period": "Week"}, "algorithm": "FixedWindow"}]}`,
	"a calendar of a zone": `{"selector": {}, "limits": [{"name": "a", "requests": 1, "algorithm": "FixedWindow",
		"calendar": {"period": "Year", "timeZone": "America/Argentina/ComodRivadavia"}}]}`,
	"a window from the first request": `{"selector": {}, "limits": [{"name": "a", "requests": 1, "window": "24h",
		"algorithm": "FixedWindow", "anchor": "FirstRequest"}]}`,
	"most slots": `{"selector": {}, "limits": [{"name": "a", "requests": 100000, "window": "1h",
		"algorithm": "Concurrency", "distribution": {"mode": "Split"}}]}`,
	"slots of a second": `{"selector": {}, "limits": [{"name": "a", "requests": 0, "window": "1s", "algorithm": "Concurrency"}]}`,
	"leases":            `{"selector": {}, "limits": [{"name": "a", "requests": 1, "window": "1m", "distribution": {"mode": "Leased"}}]}`,
	"exchanged counts":  `{"selector": {}, "limits": [{"name": "a", "requests": 1, "window": "1m", "distribution": {"mode": "Synced"}}]}`,
	"counts exchanged at an interval": `{"selector": {}, "limits": [
		{"name": "a", "requests": 1, "window": "1m", "distribution": {"mode": "Synced", "interval": "10ms"}},
		{"name": "b", "requests": 1, "window": "1m", "distribution": {"mode": "Synced", "interval": "1m"}},
		{"name": "c", "requests": 1, "window": "1m", "distribution": {"mode": "Synced", "maxOvershootPercent": 100}}]}`,
	"a distribution without a mode": `{"selector": {}, "limits": [{"name": "a", "requests": 1, "window": "1m", "distribution": {}}]}`,
	"a backstop":                    `{"selector": {}, "limits": [{"name": "a", "requests": 1, "window": "1m", "backstop": {"requests": 9007199254740991}}]}`,
	"overrides": `{"selector": {}, "limits": [{"name": "a", "requests": 1, "window": "1m", "algorithm": "TokenBucket",
		"key": [{"header": {"name": "X-Api-Key"}}], "overrides": [
			{"keys": ["acme", "Acme", "größe"], "requests": 1000, "burst": 50}, {"keys": ["closed"], "requests": 0},
			{"keys": ["internal"], "action": "Exempt"}, {"keys": ["banned"], "action": "Deny"}]}]}`,
	"overrides of addresses": `{"selector": {}, "limits": [{"name": "a", "requests": 1, "window": "1m",
		"key": [{"clientIP": {"ipv4PrefixLength": 24}}], "overrides": [
			{"keys": ["192.0.2.7", "2001:DB8::1", "::ffff:198.51.100.1"], "requests": 9007199254740991}]}]}`,
	"no overrides": `{"selector": {}, "limits": [{"name": "a", "requests": 1, "window": "1m", "overrides": []}]}`,
	"most overrides": `{"selector": {}, "limits": [{"name": "a", "requests": 1, "window": "1m",
		"key": [{"path": {}}], "overrides": ` + mostOverrides() + `}]}`,
	"a body without its type": `{"selector": {}, "limits": [{"name": "a", "requests": 1, "window": "1m"}], "response": {"body": "no"}}`,
}

// mostOverrides are as many overrides as a limit may have, with as many keys as
// the first may have.
func mostOverrides() string {
	overrides := make([]policy.Override, policy.MaxOverrides)
	for i := range overrides {
		overrides[i] = policy.Override{Keys: []string{fmt.Sprintf("/%d", i)}, Requests: new(int64(i))}
	}
	for i := range policy.MaxOverrideKeys - 1 {
		overrides[0].Keys = append(overrides[0].Keys, fmt.Sprintf("/%0*d", policy.MaxKeyValue-1, i))
	}
	data, _ := json.Marshal(overrides) // cannot fail: no type of it does
	return string(data)
}

// One spec means one thing, whether the API server or a file is asked: what is
// left out is filled in alike, and what is set stays as it is.
func TestServerAndDecoderAgreeOnDefaults(t *testing.T) {
	for name, text := range valid {
		t.Run(name, func(t *testing.T) {
			want, err := policy.DecodeSpec([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			stored, err := create(t, []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			got := decodeAsStored(t, stored)
			takeDependentDefaults(&got, &want)
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("decoder (-) and API server (+) differ:\n%s", diff)
			}
		})
	}
}

// takeDependentDefaults fills in the defaults that depend on another field,
// which no schema can have.
func takeDependentDefaults(got, want *policy.Spec) {
	if got.Response.Body != "" && got.Response.ContentType == "" {
		got.Response.ContentType = want.Response.ContentType
	}
	for i := range got.Limits {
		g, w := &got.Limits[i].Distribution, &want.Limits[i].Distribution
		switch {
		case g.Mode == policy.Leased && g.MaxIdlePercent == 0:
			g.MaxIdlePercent = w.MaxIdlePercent
		case g.Mode == policy.Synced && g.Interval == 0 && g.MaxOvershootPercent == 0:
			g.MaxOvershootPercent = w.MaxOvershootPercent
		}
	}
}

// P9: a window is neither rounded nor read in another unit.
func TestAWindowIsStoredAsItIsWritten(t *testing.T) {
	for _, window := range []string{"500ms", "1500ms", "60s", "0h1m", "1h30m", "8783h59m59s999ms"} {
		stored, err := create(t, []byte(`{"selector": {}, "limits": [{"name": "a", "requests": 1, "window": "`+window+`"}]}`))
		if err != nil {
			t.Errorf("window %s: %v", window, err)
			continue
		}
		if !strings.Contains(string(stored), `"window":"`+window+`"`) {
			t.Errorf("window %s is stored as %s", window, stored)
		}
	}
}

func TestKubectlExplainsEveryFieldOfALimit(t *testing.T) {
	text := kubectl(t, "explain", "ratelimitpolicy.spec.limits")
	for name := range jsonFields(reflect.TypeFor[v1alpha1.Limit]()) {
		// A field's type is followed by its comment, which begins with its name.
		_, comment, _ := strings.Cut(text, "\n  "+name+"\t")
		_, comment, _ = strings.Cut(comment, "\n    "+name)
		if words := strings.Fields(comment); len(words) < 5 {
			t.Errorf("%s is explained with %q", name, words)
		}
	}
}

func TestKubectlGetAnswersWhetherItWorks(t *testing.T) {
	p := &v1alpha1.RateLimitPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "columns"}}
	if err := json.Unmarshal([]byte(valid["minimal"]), &p.Spec); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	set := func(condition string, status metav1.ConditionStatus, reason string) {
		meta.SetStatusCondition(&p.Status.Conditions, metav1.Condition{
			Type: condition, Status: status, Reason: reason, ObservedGeneration: p.Generation,
		})
	}
	set(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	set(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed)
	set(v1alpha1.ConditionEnforced, metav1.ConditionFalse, v1alpha1.ReasonPartial)
	p.Status.Enforcers = v1alpha1.NewEnforcers(2, 3)
	if err := cluster.Status().Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}

	lines := strings.Split(kubectl(t, "get", "tally", "columns", "--output=wide"), "\n")
	for i, want := range [][]string{
		{"NAME", "ACCEPTED", "PROGRAMMED", "ENFORCED", "PODS", "AGE", "REASON"},
		{"columns", "True", "True", "False", "2/3", "?", "Partial"},
	} {
		got := strings.Fields(lines[i])
		if i == 1 && len(got) > 5 {
			got[5] = "?"
		}
		if !slices.Equal(got, want) {
			t.Errorf("kubectl get tally: %q, want %q", got, want)
		}
	}
}
