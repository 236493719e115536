package guard

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/operator"
)

func TestOnlyLoopbackAddressesAreServed(t *testing.T) {
	for _, address := range []string{"127.0.0.1:12082", "127.1.2.3:1", "[::1]:12082"} {
		if err := CheckAddress(address); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, address := range []string{"", ":12082", "0.0.0.0:12082", "[::]:12082", "10.0.0.1:12082", "localhost:12082", "127.0.0.1", "12082"} {
		if err := CheckAddress(address); err == nil || !strings.Contains(err.Error(), "127.0.0.1:12082") {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestWhoChoseTheURLOnlyIsRefused(t *testing.T) {
	done := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	served := New(map[string]http.Handler{"POST /v1/reset": done, "GET /v1/reset": done})
	good := func(method string) *http.Request {
		r := httptest.NewRequest(method, "/v1/reset", nil)
		r.Host = "127.0.0.1:4711"
		r.Header.Set(operator.Header, "1")
		if method == "POST" {
			r.Header.Set("Content-Type", "application/json")
		}
		return r
	}
	for name, c := range map[string]struct {
		method string
		change func(r *http.Request)
		code   int
	}{
		"GET":                        {"GET", func(*http.Request) {}, 204},
		"POST":                       {"POST", func(*http.Request) {}, 204},
		"a charset":                  {"POST", func(r *http.Request) { r.Header.Set("Content-Type", "Application/JSON; charset=utf-8") }, 204},
		"localhost":                  {"GET", func(r *http.Request) { r.Host = "localhost:4711" }, 204},
		"without a port":             {"GET", func(r *http.Request) { r.Host = "127.0.0.1" }, 204},
		"IPv6":                       {"GET", func(r *http.Request) { r.Host = "[::1]:4711" }, 204},
		"IPv6 without a port":        {"GET", func(r *http.Request) { r.Host = "[::1]" }, 204},
		"another path":               {"GET", func(r *http.Request) { r.URL.Path = "/v1/other" }, 404},
		"another method":             {"PUT", func(*http.Request) {}, 404},
		"no header":                  {"GET", func(r *http.Request) { r.Header.Del(operator.Header) }, 403},
		"an empty header":            {"POST", func(r *http.Request) { r.Header.Set(operator.Header, "") }, 403},
		"a name that was made ours":  {"GET", func(r *http.Request) { r.Host = "evil.example:4711" }, 403},
		"a name that begins like it": {"GET", func(r *http.Request) { r.Host = "localhost.evil.example" }, 403},
		"the pod's address":          {"GET", func(r *http.Request) { r.Host = "10.0.0.1:4711" }, 403},
		"no host":                    {"GET", func(r *http.Request) { r.Host = "" }, 403},
		"a form":                     {"POST", func(r *http.Request) { r.Header.Set("Content-Type", "application/x-www-form-urlencoded") }, 415},
		"plain text":                 {"POST", func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, 415},
		"no type":                    {"POST", func(r *http.Request) { r.Header.Del("Content-Type") }, 415},
	} {
		r, w := good(c.method), httptest.NewRecorder()
		c.change(r)
		served.ServeHTTP(w, r)
		if w.Code != c.code || w.Code != 204 && w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: got %d %s", name, w.Code, w.Body)
		}
	}
}
