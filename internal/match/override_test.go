package match

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// limitWithOverrides has an override of each action for some values of a key.
func limitWithOverrides(t testing.TB, part policy.KeyPart, limit, exempt, deny []string) *Limit {
	t.Helper()
	return compileLimit(t, policy.Limit{
		Key:  []policy.KeyPart{part},
		Cost: &policy.Cost{Requests: new(int64(2))},
		Overrides: []policy.Override{
			{Keys: []string{"192.0.2.99"}, Requests: new(int64(1))},
			{Keys: limit, Requests: new(int64(1000))},
			{Keys: exempt, Action: policy.OverrideExempt},
			{Keys: deny, Action: policy.OverrideDeny},
		},
	})
}

func TestAnOverrideDecidesWhatBecomesOfItsKeys(t *testing.T) {
	l := limitWithOverrides(t, headerKey("x-api-key"), []string{"acme", "emca"}, []string{"internal"}, []string{"banned"})
	for value, want := range map[string]Outcome{
		"acme":     {Verdict: Count, Key: hashed("acme"), Override: 1, Cost: 2},
		"emca":     {Verdict: Count, Key: hashed("emca"), Override: 1, Cost: 2},
		"internal": {Verdict: Skip, Override: 2},
		"banned":   {Verdict: Deny, Override: 3},
		"other":    {Verdict: Count, Key: hashed("other"), Override: NoOverride, Cost: 2},
		"Acme":     {Verdict: Count, Key: hashed("Acme"), Override: NoOverride, Cost: 2},
		"":         {Verdict: Count, Key: "-", Override: NoOverride, Cost: 2},
	} {
		got := l.Evaluate(&Request{Header: http.Header{"X-Api-Key": {value}}})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", value, diff)
		}
	}
}

func TestARequestThatTheLimitLeavesAloneHasNoOverride(t *testing.T) {
	l := compileLimit(t, policy.Limit{
		Except: []policy.Match{{Methods: []string{"GET"}}}, Key: []policy.KeyPart{methodKey},
		Overrides: []policy.Override{{Keys: []string{"GET"}, Action: policy.OverrideDeny}},
	})
	if diff := cmp.Diff(Outcome{Override: NoOverride}, l.Evaluate(&Request{Method: "GET"})); diff != "" {
		t.Error(diff)
	}
}

func TestOverridesOfAddressesAreOverridesOfNetworks(t *testing.T) {
	l := limitWithOverrides(t, clientIPKey(24, 64), []string{"198.51.100.7", "2001:DB8:0:0:1::"}, []string{"::ffff:203.0.113.0"}, nil)
	for address, want := range map[string]int{
		"198.51.100.7":        1,
		"198.51.100.200":      1,
		"::ffff:198.51.100.1": 1,
		"198.51.101.7":        NoOverride,
		"2001:db8::1":         1,
		"2001:db8:0:1::1":     NoOverride,
		"203.0.113.255":       2,
		"192.0.2.1":           0,
	} {
		if got := l.Evaluate(&Request{ClientIP: addr(address)}); got.Override != want || got.Err != nil {
			t.Errorf("%s: got %+v, want override %d", address, got, want)
		}
	}
}

// A value in a policy and the same value in a request have one encoding,
// whatever the attribute, and different values have not.
func TestAnOverrideIsFoundForItsValueOnly(t *testing.T) {
	parts := []policy.KeyPart{
		headerKey("A"), queryKey("a"), pathKey, methodKey, expressionKey("request.headers['a']"),
	}
	rapid.Check(t, func(rt *rapid.T) {
		named, sent := nasty.Draw(rt, "named"), nasty.Draw(rt, "sent")
		if rapid.Bool().Draw(rt, "equal") {
			sent = named
		}
		for _, part := range parts {
			r := &Request{Method: sent, Path: sent, RawQuery: "a=" + url.QueryEscape(sent), Header: http.Header{"A": {sent}}}
			value := sent
			switch {
			case part.Path != nil:
				value = r.path()
			case part.Method != nil:
				value = r.method()
			}
			got := limitWithOverrides(t, part, []string{named}, nil, nil).Evaluate(r)
			// A request without a value has no override, even if one names "".
			if found := got.Override == 1; found != (value == named && value != "") {
				rt.Fatalf("%+v: named %q, sent %q: %+v", part, named, value, got)
			}
		}
	})
}

func TestLookingForAnOverrideAllocatesNothing(t *testing.T) {
	many := make([]string, policy.MaxOverrideKeys)
	for i := range many {
		many[i] = strings.Repeat("k", i+1)
	}
	r := &Request{Header: http.Header{"X-Api-Key": {"acme"}}}
	allocations := func(l *Limit) float64 { return testing.AllocsPerRun(100, func() { l.Evaluate(r) }) }
	without := allocations(limitWithKey(t, headerKey("X-Api-Key")))
	if with := allocations(limitWithOverrides(t, headerKey("X-Api-Key"), []string{"acme"}, many, nil)); with > without {
		t.Errorf("%v allocations with overrides, %v without", with, without)
	}
}
