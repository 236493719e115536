package match

import (
	"net/http"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

func TestKeysArePrintedAsTheirValues(t *testing.T) {
	r := &Request{Method: "post", Path: "/v1//orders", Header: http.Header{"X-Api-Key": {"s3cret"}}, ClientIP: addr("192.0.2.7")}
	six := &Request{ClientIP: addr("2001:db8:1:2:3::4")}
	for name, tc := range map[string]struct {
		r      *Request
		client string
		parts  []policy.KeyPart
		want   string
	}{
		"no parts":            {r, "", nil, "(all)"},
		"an address":          {r, "", []policy.KeyPart{clientIPKey(32, 64)}, "192.0.2.7"},
		"a network":           {r, "", []policy.KeyPart{clientIPKey(24, 64)}, "192.0.2.0/24"},
		"a network of IPv6":   {six, "", []policy.KeyPart{clientIPKey(32, 64)}, "2001:db8:1:2::/64"},
		"a client's name":     {six, "host.example", []policy.KeyPart{clientIPKey(32, 64)}, "host.example"},
		"no address":          {&Request{}, "", []policy.KeyPart{clientIPKey(32, 64)}, "(missing)"},
		"values and one more": {r, "", []policy.KeyPart{methodKey, pathKey, headerKey("x-api-key"), cookieKey("sid")}, "POST, /v1/orders, s3cret, (missing)"},
		"an expression":       {r, "", []policy.KeyPart{expressionKey("request.method + '!'")}, "POST!"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := limitWithKey(t, tc.parts...).KeyText(tc.r, tc.client); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestThePublicTextOfAKeyHasNoSecret(t *testing.T) {
	r := &Request{Method: "post", Path: "/v1:2//#-*", Header: http.Header{"X-Api-Key": {"s3cret"}}, ClientIP: addr("192.0.2.7")}
	for want, parts := range map[string][]policy.KeyPart{
		"(all)":                             nil,
		"192.0.2.0, POST":                   {clientIPKey(24, 64), methodKey},
		"/v1:2/#-*, (missing), (missing)":   {pathKey, cookieKey("sid"), queryKey("q")},
		hashed("s3cret") + ", POST":         {headerKey("x-api-key"), methodKey},
		"POST, " + hashed(r.Method+"x"):     {methodKey, expressionKey("'postx'")},
		"(missing), " + hashed("/v1:2/#-*"): {headerKey("x-none"), expressionKey("request.path")},
	} {
		if got := PublicText(limitWithKey(t, parts...).Evaluate(r).Key); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestTextsAreCutInWholeCharacters(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"abcde", "abcde"},
		{"abcdef", "abcde…"},
		{"abcdé", "abcd…"},
		{"ab€€", "ab€…"},
		{"abc😀x", "abc…"},
		{"\x80\x80\x80\x80\x80\x80\x80", "\x80\x80…"},
	} {
		if got := CutText(c.text, 5); got != c.want {
			t.Errorf("%q is cut to %q, want %q", c.text, got, c.want)
		}
	}
	for most := range 5 {
		if got := CutText("\x80\x80\x80\x80\x80", most); len(got) > most+len("…") {
			t.Errorf("cut to %q, not to %d bytes", got, most)
		}
	}
}
