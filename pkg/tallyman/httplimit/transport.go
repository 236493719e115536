package httplimit

import (
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// Transport is an http.RoundTripper for clients that must not ask others more often
// than their policies allow: it asks for each request before it is sent.
//
//	client := &http.Client{Transport: &httplimit.Transport{Admitter: limiter}}
//
// A request that is not admitted is not sent, and fails with a *RefusedError. It is
// not made to wait: a caller that can wait knows best how long, and the error tells
// how long it would have to.
//
// Policies see the method, the URL and the headers as the client has set them; there
// is no client's address to count by. Each redirect that http.Client follows is a
// request. Slots of Concurrency limits are held until the response's body is closed.
//
// It is safe for concurrent use.
type Transport struct {
	Admitter Admitter
	// Base sends what is admitted; nil is http.DefaultTransport.
	Base http.RoundTripper
}

// RefusedError means that a request was not sent, since it was not admitted. Of the
// errors of http.Client, errors.As finds it.
type RefusedError struct {
	// Decision says which limit refused, and when to try again.
	Decision tallyman.Decision
}

// Error implements error.
func (e *RefusedError) Error() string {
	text := fmt.Sprintf("not sent: policy %s: %s", e.Decision.Policy, e.Decision.Detail())
	if e.Decision.RetryAfter > 0 {
		text += " Try again in " + seconds(e.Decision.RetryAfter) + " s."
	}
	return text
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		closeBody(r)
		return nil, err // it would be counted, and not be sent
	}
	d := t.Admitter.Admit(r.Context(), outgoing(r))
	if !d.Allowed {
		closeBody(r)
		return nil, &RefusedError{Decision: d}
	}
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	resp, err := base.RoundTrip(r)
	if err != nil || resp.Body == http.NoBody {
		d.Release()
		return resp, err
	}
	resp.Body = releasing(resp.Body, d.Release)
	return resp, nil
}

// closeBody is what a RoundTripper owes its caller, also when it sends nothing.
func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// outgoing is what policies can look at of a request that is to be sent.
func outgoing(r *http.Request) tallyman.Request {
	out := tallyman.Request{Method: r.Method, Host: r.Host, Header: r.Header}
	out.Path, out.RawQuery = tallyman.SplitTarget(r.URL.RequestURI())
	if out.Method == "" {
		out.Method = http.MethodGet
	}
	if out.Host == "" {
		out.Host = r.URL.Host
	}
	return out
}

// releasing calls release when a body is closed. The body of a response that has
// switched protocols can be written to, and still can.
func releasing(body io.ReadCloser, release func()) io.ReadCloser {
	b := releasingBody{ReadCloser: body, release: sync.OnceFunc(release)}
	if w, ok := body.(io.Writer); ok {
		return struct {
			releasingBody
			io.Writer
		}{b, w}
	}
	return b
}

type releasingBody struct {
	io.ReadCloser
	release func()
}

// Close implements io.Closer.
func (b releasingBody) Close() error {
	defer b.release()
	return b.ReadCloser.Close()
}
