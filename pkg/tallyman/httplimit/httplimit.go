// Package httplimit puts a tallyman.Limiter in front of an http.Handler: it asks
// for each request, answers those that are refused, and tells clients of their
// limits in headers.
//
//	handler = httplimit.Middleware(limiter)(handler)
//
// Transport does the same for a client, before it asks others.
package httplimit

import (
	"context"
	"maps"
	"net/http"
	"strings"

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
			defer d.Release()
			SetHeaders(w.Header(), d)
			next.ServeHTTP(w, r)
		})
	}
}

// IsGRPC says whether a request is a gRPC call, by its Content-Type, as the gRPC
// protocol over HTTP/2 has it. gRPC-Web is none: it is framed otherwise, and
// comes over any HTTP.
func IsGRPC(r *http.Request) bool {
	subtype, found := strings.CutPrefix(r.Header.Get("Content-Type"), "application/grpc")
	return found && (subtype == "" || subtype[0] == '+' || subtype[0] == ';')
}

// Request is what policies can look at of a request that a server received.
// Headers that the client names in Connection are left out: a proxy does not
// pass them on, and a client must not be counted by what the app never sees. Those
// by which proxies in front tell of the client stay: they are not its to take away.
func Request(r *http.Request) tallyman.Request {
	return tallyman.Request{
		Method: r.Method, Host: r.Host, Path: r.URL.EscapedPath(), RawQuery: r.URL.RawQuery,
		Header: endToEnd(r.Header), RemoteAddr: r.RemoteAddr,
	}
}

// isOfProxies says whether a header is one that proxies in front set.
func isOfProxies(name string) bool {
	switch name {
	case "Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto":
		return true
	default:
		return false
	}
}

// endToEnd is the header itself, unless Connection names something in it.
func endToEnd(h http.Header) http.Header {
	out := h
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if _, present := out[name]; !present || isOfProxies(name) {
				continue
			}
			if len(out) == len(h) {
				out = maps.Clone(h)
			}
			delete(out, name)
		}
	}
	return out
}
