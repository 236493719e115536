package match

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestSpellingsOfAPathBecomeOne(t *testing.T) {
	for raw, want := range map[string]string{
		// Unchanged.
		"/":               "/",
		"/v1/orders":      "/v1/orders",
		"/a.b/c~d/e-f_g":  "/a.b/c~d/e-f_g",
		"/a+b":            "/a+b",
		"/V1/Orders":      "/V1/Orders",
		"/.well-known/x":  "/.well-known/x",
		"/...":            "/...",
		"/a/..b/c..":      "/a/..b/c..",
		"/v1\\orders":     "/v1\\orders",
		"/a/b=c,d:e@f!$&": "/a/b=c,d:e@f!$&",

		// A slash in front, none at the end, none twice.
		"":              "/",
		"*":             "/*",
		"v1/orders":     "/v1/orders",
		"/v1/orders/":   "/v1/orders",
		"//":            "/",
		"//v1///orders": "/v1/orders",

		// Dot segments, spelt in any way; never above the root.
		"/v1/./orders":             "/v1/orders",
		"/v1/x/../orders":          "/v1/orders",
		"/v1/%2e/orders":           "/v1/orders",
		"/v1/x/%2E%2e/orders":      "/v1/orders",
		"/v1/x/.%2e/orders":        "/v1/orders",
		"/..":                      "/",
		"/../../v1":                "/v1",
		"/v1/orders/..":            "/v1",
		"/v1/orders/.":             "/v1/orders",
		"/public/%2e%2e/admin":     "/admin",
		"/public//../admin":        "/admin",
		"/public/..;/admin":        "/admin",
		"/public/..;jsession=1/a":  "/a",
		"/public/%2e%2e;x/admin":   "/admin",
		"/public/..%2Fadmin":       "/public/..%2Fadmin",
		"/public/%252e%252e/admin": "/public/%252e%252e/admin",

		// Escapes: decoded once, unless that would change the structure.
		"/%76%31/%6Frders":  "/v1/orders",
		"/a%20b":            "/a b",
		"/caf%c3%a9":        "/café",
		"/café":             "/café",
		"/a%2fb":            "/a%2Fb",
		"/a%2Fb":            "/a%2Fb",
		"/a%5cb":            "/a\\b",
		"/a%3Bb":            "/a%3Bb",
		"/a%3bb":            "/a%3Bb",
		"/a%3Fb%23c":        "/a?b#c",
		"/a%2561":           "/a%2561",
		"/100%":             "/100%25",
		"/100%25":           "/100%25",
		"/%zz/%4":           "/%25zz/%254",
		"/a%00b":            "/a%00b",
		"/a\x00b":           "/a%00b",
		"/a%0d%0aSet-X: 1":  "/a%0D%0ASet-X: 1",
		"/a%7f":             "/a%7F",
		"/%ff\xfe":          "/%FF%FE",
		"/%c0%ae%c0%ae/etc": "/%C0%AE%C0%AE/etc",
		"/%c3/%a9":          "/%C3/%A9",
		"/a%c3%c3%a9":       "/a%C3é",

		// Parameters of segments.
		"/v1/orders;a=b":       "/v1/orders",
		"/v1;x/orders;y;z=1":   "/v1/orders",
		"/;x":                  "/",
		"/v1/;/orders":         "/v1/orders",
		"/matrix;lat=1;lng=%2": "/matrix",
	} {
		if got := normalizePath(raw); got != want {
			t.Errorf("%q becomes %q, want %q", raw, got, want)
		}
	}
}

func TestALongPathIsNormalisedInLinearTime(t *testing.T) {
	const n = 1 << 20
	for raw, want := range map[string]string{
		"/v1" + strings.Repeat("/x/..", n):                 "/v1",
		"/v1" + strings.Repeat("/", n):                     "/v1",
		strings.Repeat("/a", n) + strings.Repeat("/..", n): "/",
		strings.Repeat("%2e%2e%2f", n):                     "/" + strings.Repeat("..%2F", n),
	} {
		if got := normalizePath(raw); got != want {
			t.Errorf("%.20q... becomes %.20q...", raw, got)
		}
	}
}

func TestANormalPathIsNotCopied(t *testing.T) {
	path := "/v1/users/42/orders"
	if n := testing.AllocsPerRun(100, func() { normalizePath(path) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// checkNormal holds for the normal form of any input.
func checkNormal(t rapid.TB, raw string) {
	path := normalizePath(raw)
	if again := normalizePath(path); again != path {
		t.Fatalf("%q becomes %q, and that becomes %q", raw, path, again)
	}
	if !strings.HasPrefix(path, "/") || !utf8.ValidString(path) || strings.IndexFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f }) >= 0 {
		t.Fatalf("%q becomes %q", raw, path)
	}
	if path == "/" {
		return
	}
	for segment := range strings.SplitSeq(path[1:], "/") {
		if segment == "" || segment == "." || segment == ".." || strings.Contains(segment, ";") {
			t.Fatalf("%q becomes %q, with the segment %q", raw, path, segment)
		}
	}
}

func TestNormalPathsAreNormal(t *testing.T) {
	piece := rapid.SampledFrom([]string{"/", "/", ".", "..", "%2e", "%2E", "%2f", "%25", "%", "%c3", "%a9", "\xc3", "\xa9", ";", "%3b", "a", "v1", "%61", "%00", "\x7f", "\\", "é", "2", "F"})
	rapid.Check(t, func(t *rapid.T) {
		checkNormal(t, strings.Join(rapid.SliceOfN(piece, 0, 12).Draw(t, "pieces"), ""))
	})
}

func FuzzNormalizePath(f *testing.F) {
	for _, seed := range []string{"", "/", "/a/../b", "//%2e%2e;/%2f", "/%c3%28", "/%25%32%66", "%", "/a;b/%3b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) { checkNormal(t, raw) })
}

func TestATargetIsSplitAsServersDo(t *testing.T) {
	for target, want := range map[string][2]string{
		"": {}, "/a": {"/a"}, "/a?": {"/a"}, "/a?b=1?c": {"/a", "b=1?c"},
		"/a#b": {"/a"}, "/a#b?c=1": {"/a"}, "/a?b=1#c": {"/a", "b=1"}, "/a%23b?c=%23": {"/a%23b", "c=%23"},
	} {
		if path, query := SplitTarget(target); [2]string{path, query} != want {
			t.Errorf("%q is %q and %q, want %q", target, path, query, want)
		}
	}
}
