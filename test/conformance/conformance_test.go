package conformance

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/testredis"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

func TestEveryWayInDecidesAlike(t *testing.T) {
	stores := map[string]func(*testing.T) string{
		"in the process": func(*testing.T) string { return tallyman.MemoryStore },
		"in Redis":       func(t *testing.T) string { return testredis.Shared(t).URL() },
	}
	for store, url := range stores {
		for name, open := range ways {
			table := slices.Concat(conformances, httpConformances)
			if name == calls {
				table = conformances
			}
			for _, c := range table {
				t.Run(store+"/"+name+"/"+c.name, func(t *testing.T) {
					send := open(t, tallyman.Options{
						Store: url(t), Prefix: testredis.Prefix(t), PolicyFile: policyFile(t, c.spec), TrustedHops: 1,
					})
					for i, e := range c.trace {
						want := e.want
						if name == rateLimit || name == calls {
							want = strings.Replace(want, "403", "429", 1)
						}
						status, header := send(t, request(e))
						if got := told(status, header); got != want {
							t.Errorf("request %d, %s %v: got %s, want %s", i, e.send, e.header, got, want)
						}
					}
				})
			}
		}
	}
}

// request is an exchange's, as a server behind a trusted proxy has it.
func request(e exchange) *http.Request {
	method, uri, _ := strings.Cut(e.send, " ")
	r := httptest.NewRequest(method, uri, nil)
	r.Host = "shop.example"
	r.Header.Set("X-Forwarded-For", "192.0.2.1")
	for name, value := range e.header {
		r.Header.Set(name, value)
	}
	if host := r.Header.Get("Host"); host != "" {
		r.Host = host
		r.Header.Del("Host")
	}
	return r
}

var times = regexp.MustCompile(`;t=\d+`)

// told is an answer as the table has it.
func told(status int, header http.Header) string {
	text := strconv.Itoa(status) + " " + times.ReplaceAllString(header.Get("RateLimit"), "")
	if retry := header.Get("Retry-After"); retry != "" {
		text += " retry"
	}
	return text
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func policyFile(t *testing.T, spec string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	text := "apiVersion: tallyman.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: a}\nspec: {selector: {}, storeTimeout: 10s, " + spec + "}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
