package policy_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/test/faults"
)

const minimal = `{"selector": {}, "limits": [{"name": "a", "requests": 1, "window": "1m"}]}`

const full = `{
	"targetRefs": [{"kind": "Deployment", "name": "orders"}, {"kind": "Service", "name": "orders"}],
	"enforcement": "Shadow", "storeTimeout": "1s",
	"limits": [{
		"name": "per-client", "requests": 0, "window": "1h30m", "algorithm": "TokenBucket", "burst": 150,
		"match": [{"methods": ["POST"], "path": {"value": "/v1"}, "headers": [{"name": "X-Plan", "value": ""}], "expression": "true"}],
		"except": [{"path": {"type": "RegularExpression", "value": ".*[.]css"}}],
		"key": [{"clientIP": {}}, {"header": {"name": "X-Api-Key"}}, {"path": {}}, {"method": {}}, {"expression": "request.method"}],
		"onMissingKey": "Skip", "cost": {"requests": 0}, "failurePolicy": "Deny", "distribution": {"mode": "Leased", "maxIdlePercent": 5}
	}, {
		"name": "monthly", "requests": 1000, "calendar": {"period": "Month", "timeZone": "Europe/Berlin"}, "algorithm": "FixedWindow",
		"key": [{"clientIP": {"ipv4PrefixLength": 24}}], "backstop": {"requests": 20}, "distribution": {"mode": "Synced", "interval": "1s"},
		"overrides": [{"keys": ["192.0.2.7", "2001:DB8::1"], "requests": 0}, {"keys": ["198.51.100.0"], "action": "Exempt"}]
	}, {
		"name": "at-once", "requests": 5, "window": "30s", "algorithm": "Concurrency", "distribution": {"mode": "Split"}
	}, {
		"name": "trial", "requests": 5, "window": "24h", "algorithm": "FixedWindow", "anchor": "FirstRequest"}],
	"response": {"body": "später", "retryAfterJitter": "5s"}}`

// limit is a spec of one limit.
func limit(fields string) string {
	return `{"selector": {}, "limits": [{"name": "a", ` + fields + `}]}`
}

func decode(t *testing.T, text string) policy.Spec {
	t.Helper()
	s, err := policy.DecodeSpec([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWhatIsLeftOutHasADefault(t *testing.T) {
	want := policy.Spec{
		Selector:     &policy.Selector{},
		Enforcement:  policy.Enforce,
		StoreTimeout: policy.DefaultStoreTimeout,
		Response:     policy.Response{StatusCode: 429, Headers: policy.HeadersIETF},
		Limits: []policy.Limit{{
			Name: "a", Requests: new(int64(1)), Window: policy.Duration(60e9),
			Algorithm: policy.SlidingWindow, Anchor: policy.AnchorClock, OnMissingKey: policy.MissingShare,
			Distribution: policy.Distribution{Mode: policy.Exact}, FailurePolicy: policy.FailureBackstop,
		}},
	}
	if diff := cmp.Diff(want, decode(t, minimal)); diff != "" {
		t.Error(diff)
	}
}

func TestNestedFieldsHaveDefaults(t *testing.T) {
	s := decode(t, full)
	l := &s.Limits[0]
	if got := l.Match[0].Path.Type; got != policy.PathPrefix {
		t.Errorf("path type %q", got)
	}
	if got := l.Match[0].Headers[0].Type; got != policy.HeaderExact {
		t.Errorf("header type %q", got)
	}
	if got := *l.Key[0].ClientIP; got != (policy.ClientIPKey{IPv4PrefixLength: 32, IPv6PrefixLength: 64}) {
		t.Errorf("client IP %+v", got)
	}
	if got := s.Limits[1].Overrides[0].Action; got != policy.OverrideLimit {
		t.Errorf("override action %q", got)
	}
	if got := s.Response.ContentType; got != "text/plain; charset=utf-8" {
		t.Errorf("content type %q", got)
	}
}

func TestATimeZoneLeftOutIsUTC(t *testing.T) {
	s := decode(t, limit(`"requests": 1, "algorithm": "FixedWindow", "calendar": {"period": "Day"}`))
	if got := s.Limits[0].Calendar.TimeZone; got != "UTC" {
		t.Errorf("time zone %q", got)
	}
}

func TestTheBoundsOfADistributionHaveDefaultsByItsMode(t *testing.T) {
	for text, want := range map[string]policy.Distribution{
		`{}`:                                   {Mode: policy.Exact},
		`{"mode": "Leased"}`:                   {Mode: policy.Leased, MaxIdlePercent: 10},
		`{"mode": "Synced"}`:                   {Mode: policy.Synced, MaxOvershootPercent: 10},
		`{"mode": "Synced", "interval": "1s"}`: {Mode: policy.Synced, Interval: policy.Duration(time.Second)},
		`{"mode": "Synced", "maxOvershootPercent": 1}`: {Mode: policy.Synced, MaxOvershootPercent: 1},
		`{"mode": "Split"}`:                            {Mode: policy.Split},
	} {
		s := decode(t, limit(`"requests": 1, "window": "1m", "distribution": `+text))
		if got := s.Limits[0].Distribution; got != want {
			t.Errorf("%s is %+v, want %+v", text, got, want)
		}
	}
}

func TestDefaultingTwiceIsDefaultingOnce(t *testing.T) {
	for _, text := range []string{minimal, full} {
		once := decode(t, text)
		twice := decode(t, text)
		twice.Default()
		if diff := cmp.Diff(once, twice); diff != "" {
			t.Error(diff)
		}
	}
}

// The forms that YAML does not let through to the table of faults.
func TestAFormThatIsWrongIsNamedByItsPath(t *testing.T) {
	for text, want := range map[string]string{
		``:                  "not a JSON document: EOF",
		`{`:                 "not a JSON document: unexpected EOF",
		minimal + `{}`:      "unexpected data after the JSON document",
		`[]`:                "spec: must be an object, not a list",
		`"` + minimal[:1]:   "not a JSON document: unexpected EOF",
		`{"limits": {}}`:    "spec.limits: must be a list, not an object",
		`{"limits": [[]]}`:  "spec.limits[0]: must be an object, not a list",
		`{"selector": "a"}`: `spec.selector: must be an object, not the string "a"`,
		`{"selector": {"matchLabels": {"app": 1}}}`:                                  "spec.selector.matchLabels[app]: must be a string, not 1",
		`{"response": {"statusCode": 4294967296}}`:                                   "spec.response.statusCode: must be an integer of at most 2147483647, not 4294967296",
		`{"response": {"statusCode": 0}}`:                                            "spec.response.statusCode: must not be 0: give it a value, or leave it out",
		`{"storeTimeout": "0h"}`:                                                     `spec.storeTimeout: must not be the string "0h": give it a value, or leave it out`,
		limit(`"window": "1m", "requests": 1e3`):                                     "spec.limits[0].requests: must be an integer, without fraction and exponent, not 1e3",
		limit(`"window": "1m", "requests": 5.0`):                                     "spec.limits[0].requests: must be an integer, without fraction and exponent, not 5.0",
		limit(`"window": "1m", "requests": 99999999999999999999`):                    "spec.limits[0].requests: must be an integer of at most 9007199254740991, not 99999999999999999999",
		limit(`"window": "1m", "requests": 1, "REQUESTS": 2`):                        "spec.limits[0].REQUESTS: unknown field: write requests",
		limit(`"window": "1m", "requests": 1, "\u001b[2J\n": 2`):                     `spec.limits[0]."\x1b[2J\n": unknown field: the fields here are algorithm, anchor, backstop, burst, calendar, cost, distribution, except, failurePolicy, key, match, name, onMissingKey, overrides, requests, window`,
		`{"selector": {"matchLabels": {"a\nb": 1}}}`:                                 `spec.selector.matchLabels["a\nb"]: must be a string, not 1`,
		limit(`"window": "1m", "requests": 1, "key": [{"path": {"type": "Exact"}}]`): "spec.limits[0].key[0].path.type: unknown field: there are no fields here",
	} {
		_, err := policy.DecodeSpec([]byte(text))
		if err == nil || err.Error() != want {
			t.Errorf("%s\n got %v\nwant %s", text, err, want)
		}
	}
}

func TestANullIsAFieldLeftOut(t *testing.T) {
	got := decode(t, `{"selector": {}, "targetRefs": null, "enforcement": null, "response": null, "storeTimeout": null,
		"limits": [{"name": "a", "requests": 1, "window": "1m", "burst": null, "match": null, "key": null, "cost": null}]}`)
	if diff := cmp.Diff(decode(t, minimal), got); diff != "" {
		t.Error(diff)
	}
}

func TestAllFaultsAreToldAtOnce(t *testing.T) {
	_, err := policy.DecodeSpec([]byte(`{"enforcement": "DryRun", "limits": [
		{"name": "a", "requests": -1, "window": "8785h", "algorithm": "GCRA", "burst": 1},
		{"name": "a", "requests": 1, "window": "1m", "match": [{}]}]}`))
	found, _ := errors.AsType[policy.Errors](err)
	var paths []string
	for _, f := range found {
		paths = append(paths, f.Path)
	}
	want := []string{
		"", "enforcement",
		"limits[0].requests", "limits[0].window", "limits[0].algorithm", "limits[0].burst",
		"limits[1].match[0]", "limits[1].name",
	}
	if diff := cmp.Diff(want, paths); diff != "" {
		t.Error(diff)
	}
}

func TestAMessageIsBounded(t *testing.T) {
	long := strings.Repeat("ä", 1<<20)
	lists := `{"limits": [` + strings.TrimSuffix(strings.Repeat(`{"x": 1},`, 1000), ",") + `]}`
	for _, text := range []string{
		`{"` + long + `": 1}`, `{"enforcement": "` + long + `"}`, `{"storeTimeout": "` + long + `"}`, lists,
		`{"limits": [{"requests": ` + strings.Repeat("9", 1<<16) + `}]}`,
	} {
		_, err := policy.DecodeSpec([]byte(text))
		if err == nil || len(err.Error()) > 8192 {
			t.Errorf("%.40s…: a message of %d bytes", text, len(err.Error()))
		}
	}
}

func TestADefinitionIsReadBackAsItWas(t *testing.T) {
	for _, text := range []string{minimal, full} {
		want := policy.Definition{
			Namespace: "shop", Name: "orders", UID: "1-2-3", Generation: 7,
			Selectors: []policy.Selector{{MatchLabels: map[string]string{"app": "orders"}}},
			Spec:      decode(t, text),
		}
		data := encode(t, want)
		got, err := policy.DecodeDefinition(data)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(policy.Definition{}, "Schema", "Hash")); diff != "" {
			t.Error(diff)
		}
		if string(encode(t, got)) != string(data) {
			t.Errorf("encoded again it differs:\n%s\n%s", data, encode(t, got))
		}
	}
}

func TestADefinitionThatIsNotUnderstoodIsNotEnforced(t *testing.T) {
	good := string(encode(t, policy.Definition{Namespace: "shop", Name: "orders", Spec: decode(t, minimal)}))
	invalid := string(encode(t, policy.Definition{Namespace: "shop", Name: "orders"}))
	for text, want := range map[string]string{
		"":     "decode definition: unexpected end of JSON input",
		"null": "definition has schema 0",
		"[]":   "decode definition: json: cannot unmarshal",
		strings.Replace(good, `"schema":2`, `"schema":3,"new":true`, 1):   "definition has schema 3, this version reads 2",
		strings.Replace(good, `"schema":2`, `"schema":1`, 1):              "definition has schema 1, this version reads 2",
		strings.Replace(good, `"requests":1`, `"requests":9`, 1):          "does not match its hash",
		strings.Replace(good, `"schema":2`, `"schema":2,"extra":true`, 1): "extra: unknown field",
		good[:len(good)-10]:                      "decode definition",
		good + good:                              "decode definition",
		invalid:                                  "definition is invalid",
		strings.Repeat(" ", 2<<20) + good:        "more than the 2097152 allowed",
		strings.Repeat("[", 1<<20):               "decode definition",
		strings.Replace(good, "shop", "\xff", 1): "does not match its hash",
	} {
		if _, err := policy.DecodeDefinition([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s…: %v, want %s", text, err, want)
		}
	}
}

func FuzzDecodeSpec(f *testing.F) {
	f.Add([]byte(minimal))
	f.Add([]byte(full))
	for _, fault := range faults.Load(f) {
		f.Add(fault.JSON(f))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		want, err := policy.DecodeSpec(data)
		if err != nil {
			return
		}
		encoded, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := policy.DecodeSpec(encoded)
		if err != nil {
			t.Fatalf("%s is not read back: %v", encoded, err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%s is read back otherwise:\n%s", encoded, diff)
		}
	})
}

func FuzzDecodeDefinition(f *testing.F) {
	for _, text := range []string{minimal, full} {
		s, err := policy.DecodeSpec([]byte(text))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encode(f, policy.Definition{Namespace: "shop", Name: "orders", Spec: s}))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		want, err := policy.DecodeDefinition(data)
		if err != nil {
			return
		}
		got, err := policy.DecodeDefinition(encode(t, want))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(policy.Definition{}, "Hash")); diff != "" {
			t.Fatal(diff)
		}
	})
}

func encode(t testing.TB, d policy.Definition) []byte {
	t.Helper()
	data, err := d.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return data
}
