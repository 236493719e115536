package match

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

func clientIPKey(ipv4, ipv6 int32) policy.KeyPart {
	return policy.KeyPart{ClientIP: &policy.ClientIPKey{IPv4PrefixLength: ipv4, IPv6PrefixLength: ipv6}}
}

func headerKey(name string) policy.KeyPart {
	return policy.KeyPart{Header: &policy.NamedKey{Name: name}}
}

func cookieKey(name string) policy.KeyPart {
	return policy.KeyPart{Cookie: &policy.NamedKey{Name: name}}
}

func queryKey(name string) policy.KeyPart {
	return policy.KeyPart{QueryParameter: &policy.NamedKey{Name: name}}
}

func expressionKey(source string) policy.KeyPart { return policy.KeyPart{Expression: source} }

var (
	methodKey = policy.KeyPart{Method: &struct{}{}}
	pathKey   = policy.KeyPart{Path: &struct{}{}}
)

// hashed is how a secret value stands in a key.
func hashed(value string) string {
	sum := sha256.Sum256([]byte(value))
	return "#" + hex.EncodeToString(sum[:16])
}

func TestKeysHoldPublicValuesAsTheyAreAndSecretsHashed(t *testing.T) {
	r := &Request{
		Method: "POST", Path: "/v1//orders/", RawQuery: "tenant=a+b&tenant=c&empty=&bad=%zz",
		Header: http.Header{
			"X-Api-Key": {"s3cret"},
			"Cookie":    {`theme=dark; sid="abc"; empty=; =x; flag`, "sid=second; late=1"},
			"X-Empty":   {""},
		},
		ClientIP: addr("192.0.2.7"),
	}
	long := &Request{Method: "GET", Path: "/" + strings.Repeat("x", maxLiteral)}
	for _, c := range []struct {
		name  string
		r     *Request
		parts []policy.KeyPart
		want  string
	}{
		{"no parts", r, nil, "*"},
		{"client address", r, []policy.KeyPart{clientIPKey(32, 64)}, "9:192.0.2.7"},
		{"method and path", r, []policy.KeyPart{methodKey, pathKey}, "4:POST10:/v1/orders"},
		{"in the policy's order", r, []policy.KeyPart{pathKey, methodKey}, "10:/v1/orders4:POST"},
		{"header", r, []policy.KeyPart{headerKey("x-api-key")}, hashed("s3cret")},
		{"query parameter, decoded, first", r, []policy.KeyPart{queryKey("tenant")}, hashed("a b")},
		{"query parameter with a broken escape", r, []policy.KeyPart{queryKey("bad")}, hashed("%zz")},
		{"cookie, unquoted, first", r, []policy.KeyPart{cookieKey("sid")}, hashed("abc")},
		{"cookie of a second line", r, []policy.KeyPart{cookieKey("late")}, hashed("1")},
		{"expression", r, []policy.KeyPart{expressionKey("request.path.split('/')[2]")}, hashed("orders")},
		{"a missing part between others", r, []policy.KeyPart{methodKey, headerKey("x-absent"), pathKey}, "4:POST-10:/v1/orders"},
		{"a path of 64 bytes", &Request{Path: long.Path[:maxLiteral]}, []policy.KeyPart{pathKey}, "64:" + long.Path[:maxLiteral]},
		{"a path of 65 bytes", long, []policy.KeyPart{pathKey}, hashed(long.Path)},
	} {
		got := limitWithKey(t, c.parts...).Evaluate(c.r)
		if got.Key != c.want || got.Verdict != Count || got.Err != nil {
			t.Errorf("%s: got %+v, want the key %q", c.name, got, c.want)
		}
	}
}

func TestClientAddressesAreGroupedByNetwork(t *testing.T) {
	for _, c := range []struct {
		address    string
		ipv4, ipv6 int32
		want       string
	}{
		{"192.0.2.7", 0, 0, "9:192.0.2.7"},
		{"192.0.2.7", 24, 64, "9:192.0.2.0"},
		{"::ffff:192.0.2.7", 0, 0, "9:192.0.2.7"},
		{"2001:db8:1:2:3:4:5:6", 0, 0, "14:2001:db8:1:2::"},
		{"2001:db8:1:2:ffff::1", 0, 0, "14:2001:db8:1:2::"},
		{"2001:db8:1:2:3:4:5:6", 32, 128, "20:2001:db8:1:2:3:4:5:6"},
		{"fe80::1%eth0", 32, 128, "7:fe80::1"},
	} {
		r := &Request{ClientIP: addr(c.address)}
		if got := limitWithKey(t, clientIPKey(c.ipv4, c.ipv6)).Evaluate(r).Key; got != c.want {
			t.Errorf("%s by /%d and /%d is %q, want %q", c.address, c.ipv4, c.ipv6, got, c.want)
		}
	}
}

func TestARequestThatLacksAKeyIsSharedSkippedOrDenied(t *testing.T) {
	r := &Request{Method: "GET", Path: "/", RawQuery: "empty=", Header: http.Header{"X-Empty": {""}, "X-None": {}, "Cookie": {"empty=; other"}}}
	for _, missing := range []policy.KeyPart{
		headerKey("X-Absent"), headerKey("X-Empty"), headerKey("X-None"),
		cookieKey("absent"), cookieKey("empty"), cookieKey("other"),
		queryKey("absent"), queryKey("empty"),
		clientIPKey(32, 64), expressionKey("request.headers['x-absent']"),
	} {
		for action, want := range map[policy.OnMissingKey]Outcome{
			policy.MissingShare: {Verdict: Count, Key: "3:GET-", Override: NoOverride, Cost: 1},
			policy.MissingSkip:  {Verdict: Skip, Override: NoOverride},
			policy.MissingDeny:  {Verdict: Deny, Override: NoOverride},
		} {
			l := compileLimit(t, policy.Limit{Key: []policy.KeyPart{methodKey, missing}, OnMissingKey: action})
			if got := l.Evaluate(r); got != want {
				t.Errorf("%+v, %s: got %+v, want %+v", missing, action, got, want)
			}
		}
	}
}

func TestCaseH3_AnUnknownAddressIsAMissingKey(t *testing.T) {
	for _, remote := range []string{"", "@", "/run/app.sock"} {
		r := &Request{ClientIP: ClientIP(remote, nil, 0)}
		l := compileLimit(t, policy.Limit{Key: []policy.KeyPart{clientIPKey(32, 64)}, OnMissingKey: policy.MissingDeny})
		if got := l.Evaluate(r).Verdict; got != Deny {
			t.Errorf("%q: verdict %d", remote, got)
		}
	}
}

// H5, a warning for policies keyed by what a client chooses, is the manager's
// and not to be seen here.

func TestCaseH7_AHeaderSentTwiceIsKeyedByItsFirstValue(t *testing.T) {
	l := limitWithKey(t, headerKey("X-Api-Key"))
	got := l.Evaluate(&Request{Header: http.Header{"X-Api-Key": {"first", "second"}}})
	if got.Err != nil || got.Key != hashed("first") {
		t.Errorf("got %+v", got)
	}
}

func TestClientsChooseAllButTheirAddress(t *testing.T) {
	address := clientIPKey(32, 64)
	for name, c := range map[string]struct {
		parts  []policy.KeyPart
		chosen bool
	}{
		"no key":                          {nil, false},
		"the address":                     {[]policy.KeyPart{address}, false},
		"a header":                        {[]policy.KeyPart{headerKey("X-Api-Key")}, true},
		"a cookie":                        {[]policy.KeyPart{cookieKey("session")}, true},
		"a query parameter":               {[]policy.KeyPart{queryKey("tenant")}, true},
		"the path":                        {[]policy.KeyPart{pathKey}, true},
		"the method":                      {[]policy.KeyPart{methodKey}, true},
		"a header for each address":       {[]policy.KeyPart{address, headerKey("X-Api-Key")}, true},
		"an expression of the address":    {[]policy.KeyPart{expressionKey("request.clientIP.split(':')[0]")}, false},
		"an expression of nothing":        {[]policy.KeyPart{expressionKey("'all'")}, false},
		"an expression of a header":       {[]policy.KeyPart{expressionKey("request.headers['x-tenant']")}, true},
		"an expression of a header's end": {[]policy.KeyPart{expressionKey("['x-a', 'x-b'].map(n, request.headers[n])[0]")}, true},
		"an expression of both":           {[]policy.KeyPart{expressionKey("request.clientIP + request.host")}, true},
	} {
		if got := limitWithKey(t, c.parts...).IsKeyChosen(); got != c.chosen {
			t.Errorf("%s: chosen %v", name, got)
		}
	}
}

func TestSpellingsOfAPathShareACounter(t *testing.T) {
	l := limitWithKey(t, pathKey)
	for _, path := range []string{"/v1/orders", "/v1/orders/", "//v1/orders", "/v1/./orders", "/v1/%6Frders", "/v1/x/%2e%2E/orders", "/v1/orders;a=1"} {
		if got := l.Evaluate(&Request{Path: path}).Key; got != "10:/v1/orders" {
			t.Errorf("%q has the key %q", path, got)
		}
	}
}

// nasty values contain what other systems join or end their keys with.
var nasty = rapid.OneOf(
	rapid.SampledFrom([]string{
		"", "-", "#", "*", "}", "{", "{}", ":", "|", "_", "%", "\x00", "1:a", "1:", "0:", "é", "\xff",
		"a_b", "b_c", "a", "b", "c", "a:b", "b:c", "a|b", "%00", hashed("a"), hashed(""), strings.Repeat("x", 64), strings.Repeat("x", 65),
	}),
	rapid.String(),
)

// Fault C17 of others: values that join to the same text. Different values have
// different keys, whatever they contain.
func TestCaseC17_DifferentValuesHaveDifferentKeys(t *testing.T) {
	names := []string{"A", "B", "C"}
	limits := []*Limit{
		limitWithKey(t, headerKey("A"), headerKey("B"), headerKey("C")),
		limitWithKey(t, methodKey, headerKey("B"), expressionKey("request.headers['c']")),
		limitWithKey(t, headerKey("A"), methodKey, expressionKey("request.headers['c']")),
	}
	request := func(values []string) *Request {
		r := &Request{Method: values[3], Path: "/", Header: http.Header{}}
		for i, name := range names {
			r.Header[name] = values[i : i+1]
		}
		return r
	}
	reads := [][]int{{0, 1, 2}, {3, 1, 2}, {0, 3, 2}} // the values that each limit's key is made of
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SliceOfN(nasty, 4, 4).Draw(t, "a")
		b := rapid.SliceOfN(nasty, 4, 4).Draw(t, "b")
		for i, l := range limits {
			same := !slices.ContainsFunc(reads[i], func(j int) bool { return a[j] != b[j] })
			keyA, keyB := l.Evaluate(request(a)).Key, l.Evaluate(request(b)).Key
			if (keyA == keyB) != same {
				t.Fatalf("limit %d: %q has the key %q, %q has %q", i, a, keyA, b, keyB)
			}
		}
	})
}

func TestPathsHaveTheSameKeyOnlyWhenTheirNormalFormsAreEqual(t *testing.T) {
	l := limitWithKey(t, pathKey, methodKey)
	rapid.Check(t, func(t *rapid.T) {
		a, b := Request{Path: nasty.Draw(t, "a"), Method: nasty.Draw(t, "m")}, Request{Path: nasty.Draw(t, "b"), Method: nasty.Draw(t, "n")}
		same := normalizePath(a.Path) == normalizePath(b.Path) && a.Method == b.Method
		if keyA, keyB := l.Evaluate(&a).Key, l.Evaluate(&b).Key; (keyA == keyB) != same {
			t.Fatalf("%+v has the key %q, %+v has %q", a, keyA, b, keyB)
		}
	})
}

func TestKeysAreBoundedAndFitForAHashTag(t *testing.T) {
	all := []policy.KeyPart{
		methodKey, pathKey, headerKey("A"), cookieKey("a"), queryKey("a"), clientIPKey(32, 128),
		expressionKey("request.headers['a']"), pathKey,
	}
	if len(all) != policy.MaxKeyParts {
		t.Fatalf("%d parts, %d are allowed", len(all), policy.MaxKeyParts)
	}
	var limits []*Limit
	for i := range all {
		limits = append(limits, limitWithKey(t, all[i:]...), limitWithKey(t, all[i]))
	}
	limits = append(limits, limitWithKey(t), limitWithKey(t, slices.Repeat([]policy.KeyPart{methodKey}, policy.MaxKeyParts)...))
	rapid.Check(t, func(t *rapid.T) {
		value := nasty.Draw(t, "value")
		for _, l := range limits {
			r := &Request{
				Method: value, Path: value, RawQuery: "a=" + value, ClientIP: addr("2001:db8:1:2:3:4:5:6"),
				Header: http.Header{"A": {value}, "Cookie": {"a=" + value}},
			}
			key := l.Evaluate(r).Key
			if key == "" || key[0] == '}' || len(key) > MaxKeyLength {
				t.Fatalf("%q has the key %q", value, key)
			}
		}
	})
}
