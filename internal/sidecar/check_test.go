package sidecar

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const perKey = `limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog,
	match: [{methods: [GET], path: {value: /v1}}], key: [{header: {name: X-Api-Key}}, {queryParameter: {name: q}}, {clientIP: {}}]}]`

// ask posts to the check API.
func ask(api http.Handler, path, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	api.ServeHTTP(w, httptest.NewRequest("POST", path, strings.NewReader(body)))
	return w
}

func TestCheckAnswersWithADecision(t *testing.T) {
	l, _ := inMemory(t, perKey)
	api := newCheckAPI(doorsTo(l), 0, silent)
	body := `{"method":"GET","host":"a","path":"/v1/orders?q=1","headers":{"x-api-key":"alice"},"clientIP":"192.0.2.1"}`
	ask(api, "/v1/check", body)
	w := ask(api, "/v1/check", body)

	var got checkResponse
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK {
		t.Fatalf("got %d %s", w.Code, w.Body)
	}
	if got.RetryAfterMs < 3_590_000 || *got.Limits[0].ResetAfterMs < 3_590_000 {
		t.Errorf("got %s, want to wait for an hour", w.Body)
	}
	if got.Headers["Ratelimit-Policy"] != `"x";q=1;w=3600` || got.Headers["Retry-After"] == "" {
		t.Errorf("headers are %v", got.Headers)
	}
	got.RetryAfterMs, got.Limits[0].ResetAfterMs, got.Headers = 0, nil, nil
	want := checkResponse{
		Reason: "LimitExceeded", Policy: "a", Limit: "x", StatusCode: 429,
		Limits: []checkLimit{{
			Policy: "a", Limit: "x", Reason: "LimitExceeded", Requests: 1, Capacity: 1, WindowMs: 3_600_000, Remaining: new(int64),
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("decision (-want +got):\n%s", diff)
	}
}

func TestCheckSeesWhatARequestIs(t *testing.T) {
	const base = `{"path":"/v1/orders?q=1","headers":{"X-Api-Key":["alice"]},"clientIP":"192.0.2.1"}`
	for name, body := range map[string]string{
		"other header":       `{"path":"/v1/orders?q=1","headers":{"X-Api-Key":"bob"},"clientIP":"192.0.2.1"}`,
		"other query":        `{"path":"/v1/orders?q=2","headers":{"X-Api-Key":"alice"},"clientIP":"192.0.2.1"}`,
		"other client":       `{"path":"/v1/orders?q=1","headers":{"X-Api-Key":"alice"},"clientIP":"2001:db8::1"}`,
		"other path":         `{"path":"/v2/orders?q=1","headers":{"X-Api-Key":"alice"},"clientIP":"192.0.2.1"}`,
		"other method":       `{"method":"PUT","path":"/v1/orders?q=1","headers":{"X-Api-Key":"alice"},"clientIP":"192.0.2.1"}`,
		"nothing to look at": `{}`,
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := inMemory(t, perKey)
			api := newCheckAPI(doorsTo(l), 0, silent)
			if w := ask(api, "/v1/check", base); !strings.Contains(w.Body.String(), `"allowed":true`) {
				t.Fatalf("the first request got %s", w.Body)
			}
			if w := ask(api, "/v1/check", base); !strings.Contains(w.Body.String(), `"allowed":false`) {
				t.Fatalf("the same request again got %s", w.Body)
			}
			if w := ask(api, "/v1/check", body); !strings.Contains(w.Body.String(), `"allowed":true`) {
				t.Errorf("got %s", w.Body)
			}
		})
	}
}

func TestPeekOfTheAPITakesNothing(t *testing.T) {
	l, _ := inMemory(t, `limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog}]`)
	api := newCheckAPI(doorsTo(l), 0, silent)
	for range 3 {
		if w := ask(api, "/v1/peek", `{}`); !strings.Contains(w.Body.String(), `"allowed":true`) {
			t.Fatalf("got %s", w.Body)
		}
	}
}

func TestCheckRefusesWhatItDoesNotUnderstand(t *testing.T) {
	l, m := inMemory(t, roomy)
	api := newCheckAPI(newDoors(l, m, nil, silent), 0, silent)
	for name, tc := range map[string]struct {
		body string
		code int
		says string
	}{
		"nothing":           {``, 400, "not understood"},
		"no object":         {`[]`, 400, "not understood"},
		"not JSON":          {`{path:"/"}`, 400, "not understood"},
		"more than one":     {`{}{}`, 400, "more than one"},
		"misspelt field":    {`{"pth":"/"}`, 400, `\"pth\"`},
		"fraction as cost":  {`{"cost":1.5}`, 400, `\"cost\"`},
		"text as cost":      {`{"cost":""}`, 400, `\"cost\"`},
		"exponent as cost":  {`{"cost":1e3}`, 400, `\"cost\"`},
		"NaN as cost":       {`{"cost":NaN}`, 400, "not understood"},
		"relative path":     {`{"path":"v1"}`, 400, "slash"},
		"URL for a path":    {`{"path":"http://a/b"}`, 400, "slash"},
		"address with port": {`{"clientIP":"192.0.2.1:80"}`, 400, "clientIP"},
		"name for address":  {`{"clientIP":"localhost"}`, 400, "clientIP"},
		"null":              {` null `, 400, "null"},
		"null for headers":  {`{"headers":null}`, 400, "headers must be"},
		"list for headers":  {`{"headers":["a"]}`, 400, "headers must be"},
		"null for a header": {`{"headers":{"a":"","b":null}}`, 400, `headers[\"b\"]`},
		"null in a header":  {`{"headers":{"a":["",null]}}`, 400, `headers[\"a\"]`},
		"number for header": {`{"headers":{"a":1}}`, 400, `headers[\"a\"] must be a string`},
		"long header name":  {`{"headers":{"` + strings.Repeat("a", 1000) + `":1}}`, 400, "must be a string"},
		"too long":          {`{"path":"/` + strings.Repeat("a", maxCheckBody) + `"}`, 413, "65536"},
	} {
		t.Run(name, func(t *testing.T) {
			w := ask(api, "/v1/check", tc.body)
			if w.Code != tc.code || !strings.Contains(w.Body.String(), tc.says) || w.Header().Get("Content-Type") != "application/problem+json" {
				t.Errorf("got %d %s, want %d with %q", w.Code, w.Body, tc.code, tc.says)
			}
		})
	}
	if got := value(t, m, "tallyman_requests_total"); got != 0 {
		t.Errorf("%v requests were decided, want none", got)
	}
	for method, path := range map[string]string{"GET": "/v1/check", "POST": "/v1/other"} {
		w := httptest.NewRecorder()
		api.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		if w.Code != http.StatusMethodNotAllowed && w.Code != http.StatusNotFound {
			t.Errorf("%s %s got %d", method, path, w.Code)
		}
	}
}
