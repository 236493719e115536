package sidecar

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// described is what a proxy says of a request of 192.0.2.1, with changes: names and
// their values.
func described(changes ...string) http.Header {
	h := http.Header{
		"X-Forwarded-Method": {"GET"}, "X-Forwarded-Uri": {"/v1/orders?q=1"}, "X-Forwarded-Host": {"shop.example"},
		"X-Forwarded-For": {"192.0.2.1"}, "X-Api-Key": {"alice"},
	}
	for i := 0; i < len(changes); i += 2 {
		h.Set(changes[i], changes[i+1])
	}
	return h
}

// askAuth asks as a proxy at 198.51.100.1 does.
func askAuth(api http.Handler, suffix string, h http.Header) *http.Response {
	r := httptest.NewRequest("GET", "/v1/auth"+suffix, nil)
	r.RemoteAddr, r.Header = "198.51.100.1:1234", h
	w := httptest.NewRecorder()
	api.ServeHTTP(w, r)
	return w.Result()
}

func TestForwardAuthSeesTheRequestThatTheProxyDescribes(t *testing.T) {
	const spec = `limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog, match: [{methods: [GET], path: {value: /v1}}],
		key: [{header: {name: X-Api-Key}}, {queryParameter: {name: q}}, {clientIP: {}}, {header: {name: Host}}]}]`
	for name, h := range map[string]http.Header{
		"other header": described("X-Api-Key", "bob"),
		"other query":  described("X-Forwarded-Uri", "/v1/orders?q=2"),
		"other path":   described("X-Forwarded-Uri", "/v2/orders?q=1"),
		"other method": described("X-Forwarded-Method", "PUT"),
		"other host":   described("X-Forwarded-Host", "other.example"),
		"other client": described("X-Forwarded-For", "192.0.2.1, 2001:db8::1"),
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := inMemory(t, spec)
			api := newCheckAPI(doorsTo(l), 1, silent)
			for _, want := range []int{200, 429} {
				if resp := askAuth(api, "", described()); resp.StatusCode != want {
					t.Fatalf("got %d, want %d", resp.StatusCode, want)
				}
			}
			if resp := askAuth(api, "", described("X-Forwarded-For", "6.6.6.6, 192.0.2.1")); resp.StatusCode != 429 {
				t.Errorf("what the client sends as X-Forwarded-For made it %d", resp.StatusCode)
			}
			if resp := askAuth(api, "", h); resp.StatusCode != 200 {
				t.Errorf("got %d", resp.StatusCode)
			}
		})
	}
}

func TestForwardAuthAnswersWithWhatTheClientIsToGet(t *testing.T) {
	l, _ := inMemory(t, `limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog, match: [{path: {value: /v1}}]},
		{name: own, requests: 0, window: 1h, match: [{path: {value: /own}}]}]`,
		`response: {statusCode: 420, body: calm, contentType: text/plain}, limits: [{name: x, requests: 0, window: 1h, match: [{path: {value: /calm}}]}]`)
	api := newCheckAPI(doorsTo(l), 0, silent)
	if resp := askAuth(api, "", described()); resp.StatusCode != 200 || resp.Header.Get("RateLimit") != `"a/x";r=0;t=3600` || resp.Header.Get("RateLimit-Policy") == "" {
		t.Errorf("admitted is %d %v", resp.StatusCode, resp.Header)
	}
	for name, tc := range map[string]struct {
		suffix      string
		header      http.Header
		code        int
		contentType string
		status      string
	}{
		"refused":          {"", described(), 429, "application/problem+json", ""},
		"for nginx":        {"/nginx?refusal=200", described(), 403, "application/problem+json", "429"},
		"of gRPC":          {"", described("Content-Type", "application/grpc"), 429, "application/problem+json", ""},
		"of gRPC by nginx": {"/nginx?refusal=200", described("Content-Type", "application/grpc"), 403, "application/problem+json", "429"},
		"as the policy says": {
			"/nginx?refusal=200", described("X-Forwarded-Uri", "/calm"), 403, "text/plain", "420",
		},
	} {
		t.Run(name, func(t *testing.T) {
			resp := askAuth(api, tc.suffix, tc.header)
			if resp.StatusCode != tc.code || resp.Header.Get("Content-Type") != tc.contentType || resp.Header.Get("X-Tallyman-Status") != tc.status {
				t.Errorf("got %d %v", resp.StatusCode, resp.Header)
			}
		})
	}
	if resp := askAuth(api, "", described()); resp.Header.Get("Retry-After") != "3600" || resp.Header.Get("RateLimit") != `"a/x";r=0;t=3600` {
		t.Errorf("a refusal has the headers %v", resp.Header)
	}
}

func TestForwardAuthRefusesDescriptionsThatLackSomething(t *testing.T) {
	l, m := inMemory(t, roomy)
	var log lines
	api := newCheckAPI(newDoors(l, m, nil, silent), 2, slog.New(slog.NewTextHandler(&log, nil)))
	good := []string{"X-Forwarded-For", "192.0.2.1, 198.51.100.2"}
	for name, tc := range map[string]struct {
		changes []string
		says    string
	}{
		"no method":    {[]string{"X-Forwarded-Method", ""}, "X-Forwarded-Method"},
		"no URI":       {[]string{"X-Forwarded-Uri", ""}, "X-Forwarded-Uri"},
		"no host":      {[]string{"X-Forwarded-Host", ""}, "X-Forwarded-Host"},
		"no client":    {[]string{"X-Forwarded-For", ""}, "X-Forwarded-For"},
		"too few hops": {[]string{"X-Forwarded-For", "192.0.2.1"}, "entry 2 from the right"},
		"no address":   {[]string{"X-Forwarded-For", "unix:, 198.51.100.2"}, "X-Forwarded-For"},
		"whole URL":    {[]string{"X-Forwarded-Uri", "http://a/v1?token=sesame"}, "path"},
	} {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			r := httptest.NewRequest("GET", "/v1/auth?token=sesame", nil)
			r.Header = described(append(good, tc.changes...)...)
			api.ServeHTTP(w, r)
			if w.Code != 400 || !strings.Contains(w.Body.String(), tc.says) || w.Header().Get("Content-Type") != "application/problem+json" {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
			if strings.Contains(w.Body.String(), "sesame") {
				t.Error("the answer repeats the request")
			}
		})
	}
	for _, name := range []string{"X-Forwarded-Method", "X-Forwarded-Uri", "X-Forwarded-Host"} {
		h := described(good...)
		h.Add(name, h.Get(name))
		if resp := askAuth(api, "", h); resp.StatusCode != 400 {
			t.Errorf("%s by client and by proxy got %d", name, resp.StatusCode)
		}
		delete(h, name)
		if resp := askAuth(api, "", h); resp.StatusCode != 400 {
			t.Errorf("without %s got %d", name, resp.StatusCode)
		}
	}
	if got := value(t, m, "tallyman_requests_total"); got != 0 {
		t.Errorf("%v requests were counted, want none", got)
	}
	if log.count("forward-auth") != 1 || log.count("sesame") != 0 {
		t.Errorf("the log is\n%s", log.text.String())
	}
	if resp := askAuth(api, "", described(good...)); resp.StatusCode != 200 {
		t.Errorf("a whole description got %d", resp.StatusCode)
	}
}

func TestForwardAuthCountsNoPreflightsAndNoSlots(t *testing.T) {
	l, _ := inMemory(t, `limits: [{name: slots, requests: 1, window: 1m, algorithm: Concurrency}, {name: counted, requests: 2, window: 1h, algorithm: SlidingLog}]`)
	api := newCheckAPI(doorsTo(l), 1, silent)
	var got []int
	for range 3 {
		askAuth(api, "", described("X-Forwarded-Method", "OPTIONS", "Origin", "https://shop.example", "Access-Control-Request-Method", "POST"))
		got = append(got, askAuth(api, "", described("User-Agent", "kube-probe/1.37")).StatusCode)
	}
	if diff := cmp.Diff([]int{200, 200, 429}, got); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
}

// Whatever a client makes its proxy say, it is not let pass where nothing is.
func FuzzForwardAuthLetsNobodyPass(f *testing.F) {
	l, _ := inMemory(f, `limits: [{name: x, requests: 0, window: 1h, key: [{clientIP: {}}, {path: {}}, {method: {}}]}]`)
	api := newCheckAPI(doorsTo(l), 1, silent)
	f.Add("GET", "/v1/orders?q=1", "shop.example", "192.0.2.1", "application/json", "")
	f.Add("get", "//%2e%2e/%", "[::1]:80", "unix:, ::ffff:192.0.2.1", "application/grpc", "refusal=200")
	f.Add("", "http://a/", ",", "\x00", "application/grpc+proto", "%")
	f.Fuzz(func(t *testing.T, method, uri, host, addresses, contentType, query string) {
		for _, suffix := range []string{"", "/nginx"} {
			r := httptest.NewRequest("GET", "/v1/auth"+suffix, nil)
			r.URL.RawQuery = query
			r.Header = described("X-Forwarded-Method", method, "X-Forwarded-Uri", uri, "X-Forwarded-Host", host,
				"X-Forwarded-For", addresses, "Content-Type", contentType)
			w := httptest.NewRecorder()
			api.ServeHTTP(w, r)
			if w.Code < 400 || w.Code >= 500 {
				t.Errorf("got %d %s", w.Code, w.Body)
			}
		}
	})
}
