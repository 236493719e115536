// Package httplimit puts a tallyman.Limiter in front of an http.Handler: it asks
// for each request, answers those that are refused, and tells clients of their
// limits in headers.
//
//	handler = httplimit.Middleware(limiter)(handler)
package httplimit

import (
	"context"
	"net/http"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// Admitter decides requests, as *tallyman.Limiter does.
type Admitter interface {
	Admit(context.Context, tallyman.Request) tallyman.Decision
}

// Middleware returns a wrapper that lets through what is admitted, with the
// headers of SetHeaders, and answers what is not by Refuse. It decides before
// the body is read.
func Middleware(a Admitter) func(next http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			d := a.Admit(r.Context(), Request(r))
			if !d.Allowed {
				Refuse(w, r, d)
				return
			}
			SetHeaders(w.Header(), d)
			next.ServeHTTP(w, r)
		})
	}
}

// Request is what policies can look at of a request that a server received.
func Request(r *http.Request) tallyman.Request {
	return tallyman.Request{
		Method: r.Method, Host: r.Host, Path: r.URL.EscapedPath(), RawQuery: r.URL.RawQuery,
		Header: r.Header, RemoteAddr: r.RemoteAddr,
	}
}
