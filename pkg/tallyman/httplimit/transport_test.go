package httplimit_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
	"github.com/tallyman-dev/tallyman/pkg/tallyman/httplimit"
)

// roundTripper is a function as one.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answers has a body that has to be closed.
var answers = roundTripper(func(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("answer"))}, nil
})

// closes notes that a body was closed.
type closes struct {
	io.Reader
	closed int
}

func (c *closes) Close() error { c.closed++; return nil }

func outgoing(t *testing.T, method, url string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestTransportSendsNothingOverTheLimit(t *testing.T) {
	server := httptest.NewServer(app)
	defer server.Close()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	l := limiter(t, `limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog, match: [{methods: [POST], path: {value: /v1}}], key: [{queryParameter: {name: q}}]}]`)
	client := &http.Client{Transport: &httplimit.Transport{Admitter: l, Base: base}}
	send := func(path string) error {
		resp, err := client.Do(outgoing(t, "POST", server.URL+path, strings.NewReader("body")))
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	for _, path := range []string{"/v1?q=1", "/v1?q=2", "/v2", "/v2"} {
		if err := send(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	refused, ok := errors.AsType[*httplimit.RefusedError](send("/v1?q=1"))
	if !ok || refused.Decision.Limit != "x" || refused.Decision.RetryAfter <= 59*time.Minute || !strings.Contains(refused.Error(), "3600 s") {
		t.Errorf("over the limit: %v", refused)
	}
}

func TestTransportClosesTheBodyOfWhatItDoesNotSend(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx context.Context
		d   decided
	}{
		"refused":  {t.Context(), decided{}},
		"canceled": {canceled, decided{Allowed: true}},
	} {
		t.Run(name, func(t *testing.T) {
			body := &closes{Reader: strings.NewReader("body")}
			r := outgoing(t, "POST", "http://a/", body).WithContext(tc.ctx)
			transport := &httplimit.Transport{Admitter: tc.d, Base: roundTripper(func(*http.Request) (*http.Response, error) {
				return nil, errors.New("it was sent")
			})}
			resp, err := transport.RoundTrip(r)
			if _, refused := errors.AsType[*httplimit.RefusedError](err); resp != nil || refused == errors.Is(err, context.Canceled) || body.closed != 1 {
				t.Errorf("got %v, %v, and the body was closed %d times", resp, err, body.closed)
			}
		})
	}
}

func TestTransportDoesNotCountWhatWasCanceledBefore(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l := limiter(t, `limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog}]`)
	transport := &httplimit.Transport{Admitter: l, Base: answers}
	if _, err := transport.RoundTrip(outgoing(t, "GET", "http://a", nil).WithContext(ctx)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if d := l.Peek(t.Context(), tallyman.Request{Method: "GET", Path: "/"}); d.Limits[0].Remaining != 1 {
		t.Errorf("%d are left, want 1", d.Limits[0].Remaining)
	}
}

func TestTransportHoldsASlotUntilTheAnswerHasEnded(t *testing.T) {
	l := limiter(t, `limits: [{name: x, requests: 1, window: 1m, algorithm: Concurrency}]`)
	held := func() bool { return !l.Peek(t.Context(), tallyman.Request{Method: "GET", Path: "/"}).Allowed }
	send := func(base roundTripper) *http.Response {
		resp, _ := (&httplimit.Transport{Admitter: l, Base: base}).RoundTrip(outgoing(t, "GET", "http://a/", nil))
		return resp
	}
	resp := send(answers)
	if !held() {
		t.Error("the slot is free before the body is closed")
	}
	if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "answer" {
		t.Errorf("read %q, %v", text, err)
	}
	for range 2 {
		resp.Body.Close()
	}
	if held() {
		t.Error("the slot is held after the body was closed")
	}
	send(func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF })
	if held() {
		t.Error("the slot is held after an error")
	}
	send(func(*http.Request) (*http.Response, error) { return &http.Response{Body: http.NoBody}, nil })
	if held() {
		t.Error("the slot is held for an answer without a body")
	}
}

func TestTransportPassesUpgrades(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		rw.Flush()
		line, _ := rw.ReadString('\n')
		fmt.Fprint(rw, "echo "+line)
		rw.Flush()
	}))
	defer server.Close()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	r := outgoing(t, "GET", server.URL, nil)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "echo")
	resp, err := (&httplimit.Transport{Admitter: limiter(t, `limits: [{name: x, requests: 1, window: 1m, algorithm: Concurrency}]`), Base: base}).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		t.Fatalf("the body of %d cannot be written to", resp.StatusCode)
	}
	fmt.Fprint(body, "hello\n")
	if line, err := bufio.NewReader(body).ReadString('\n'); err != nil || line != "echo hello\n" {
		t.Errorf("got %q, %v", line, err)
	}
}

func TestTransportTellsPoliciesWhatIsSent(t *testing.T) {
	var got tallyman.Request
	transport := &httplimit.Transport{Base: answers, Admitter: admitter(func(r tallyman.Request) tallyman.Decision {
		got = r
		return tallyman.Decision{Allowed: true}
	})}
	for text, want := range map[string]string{
		"http://a.example:81/b%2Fc?d=%20": "GET a.example:81 /b%2Fc d=%20",
		"http://a.example":                "GET a.example / ",
		"http://a.example/b?":             "GET a.example /b ",
		"opaque":                          "GET a.example /b%2fc d",
	} {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if text == "opaque" { // by which net/http has escapes sent as they are
			u = &url.URL{Scheme: "http", Host: "a.example", Opaque: "/b%2fc", RawQuery: "d"}
		}
		if _, err := transport.RoundTrip(&http.Request{URL: u}); err != nil {
			t.Fatal(err)
		}
		if seen := fmt.Sprint(got.Method, " ", got.Host, " ", got.Path, " ", got.RawQuery); seen != want {
			t.Errorf("%s is seen as %q, want %q", text, seen, want)
		}
	}
}

// admitter decides by a function.
type admitter func(tallyman.Request) tallyman.Decision

func (f admitter) Admit(_ context.Context, r tallyman.Request) tallyman.Decision { return f(r) }
