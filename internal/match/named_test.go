package match

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

func TestValuesAreNamedAsPeopleWriteThem(t *testing.T) {
	for _, c := range []struct {
		part  policy.KeyPart
		value string
		want  string
	}{
		{clientIPKey(24, 64), "192.0.2.7", "9:192.0.2.0"},
		{clientIPKey(24, 64), "192.0.2.0/24", "9:192.0.2.0"},
		{clientIPKey(24, 64), "::ffff:192.0.2.7", "9:192.0.2.0"},
		{clientIPKey(24, 64), "2001:DB8::1%eth0", "10:2001:db8::"},
		{clientIPKey(24, 64), "2001:db8::/64", "10:2001:db8::"},
		{methodKey, "post", "4:POST"},
		{pathKey, "//v1/./orders/", "10:/v1/orders"},
		{headerKey("host"), "Shop.Example", hashed("shop.example")},
		{headerKey("x-api-key"), "s3cret", hashed("s3cret")},
		{headerKey("x-api-key"), "", "-"},
		{cookieKey("sid"), "abc", hashed("abc")},
		{queryKey("tenant"), "a b", hashed("a b")},
		{expressionKey("request.path"), "/x", hashed("/x")},
	} {
		got, err := limitWithKey(t, c.part).Named([]string{c.value})
		if err != nil || got.Key != c.want || got.Verdict != Count || got.Override != NoOverride {
			t.Errorf("%q: got %+v, %v, want %q", c.value, got, err, c.want)
		}
	}
	if got, err := compileLimit(t, policy.Limit{}).Named(nil); err != nil || got.Key != "*" {
		t.Errorf("the counter for all: %+v, %v", got, err)
	}
}

func TestValuesThatNameNoCounterAreRefused(t *testing.T) {
	two := []policy.KeyPart{clientIPKey(24, 64), headerKey("x-api-key")}
	for name, c := range map[string]struct {
		limit  policy.Limit
		values []string
		says   string
	}{
		"too few":         {policy.Limit{Key: two}, []string{"192.0.2.7"}, "2 values, and not 1: clientIP, header X-Api-Key"},
		"too many":        {policy.Limit{}, []string{"secret"}, "0 values, and not 1: the limit has one counter for all"},
		"no address":      {policy.Limit{Key: two}, []string{"secret", "a"}, "key[0]: clientIP is an address"},
		"with a port":     {policy.Limit{Key: two}, []string{"192.0.2.7:80", "a"}, "without a port"},
		"another network": {policy.Limit{Key: two}, []string{"192.0.2.7/32", "a"}, "each /24 of IPv4"},
		"no path":         {policy.Limit{Key: []policy.KeyPart{pathKey}}, []string{"secret"}, "starts with a slash"},
		"a missing value": {policy.Limit{Key: two, OnMissingKey: policy.MissingDeny}, []string{"192.0.2.7", ""}, "key[1]: the value is empty"},
	} {
		got, err := compileLimit(t, c.limit).Named(c.values)
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

func TestOverridesHoldForNamedValues(t *testing.T) {
	l := limitWithOverrides(t, headerKey("x-api-key"), []string{"acme"}, []string{"internal"}, []string{"banned"})
	for value, want := range map[string]Outcome{
		"acme":     {Verdict: Count, Key: hashed("acme"), Override: 1},
		"internal": {Verdict: Skip, Override: 2},
		"banned":   {Verdict: Deny, Override: 3},
	} {
		if got, err := l.Named([]string{value}); err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", value, got, err, want)
		}
	}
}

// The values of an explanation name the counter that the request is charged to,
// whatever the client sends.
func TestExplainedValuesNameTheCounter(t *testing.T) {
	parts := []policy.KeyPart{
		clientIPKey(32, 64), clientIPKey(20, 56), methodKey, pathKey, headerKey("host"), headerKey("x-api-key"),
		cookieKey("sid"), queryKey("tenant"), expressionKey("request.headers['x-api-key'] + request.path"),
	}
	limits := make([]*Limit, 0, len(parts)+2)
	for _, part := range parts {
		limits = append(limits, limitWithKey(t, part))
	}
	limits = append(limits, limitWithKey(t, parts[:policy.MaxKeyParts]...), limitWithKey(t))
	rapid.Check(t, func(t *rapid.T) {
		text := func(name string) string { return nasty.Draw(t, name) }
		address, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "address"))
		if rapid.Bool().Draw(t, "IPv4") {
			address = netip.AddrFrom4([4]byte(address.AsSlice()))
		}
		r := &Request{
			Method: text("method"), Path: "/" + text("path"), Host: text("host"),
			RawQuery: "tenant=" + url.QueryEscape(text("tenant")),
			Header:   http.Header{"X-Api-Key": {text("header")}, "Cookie": {"sid=" + text("cookie")}},
			ClientIP: address,
		}
		l := rapid.SampledFrom(limits).Draw(t, "limit")
		e := l.Explain(r)
		named, err := l.Named(e.Values)
		if err != nil || named.Key != e.Key || e.Key != l.Evaluate(r).Key {
			t.Fatalf("the values %q of %+v name %+v, %v", e.Values, e, named, err)
		}
	})
}
