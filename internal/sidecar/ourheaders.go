package sidecar

import (
	"context"
	"maps"
	"net/http"
	"slices"
)

// legacyHeaders have one value: where we tell of our limit, the app's own must
// not come beside it. RateLimit and RateLimit-Policy are lists, and join.
var legacyHeaders = []string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"}

// ourLegacyHeaders marks, in a request's context, that the response has some.
type ourLegacyHeaders struct{}

// keepOurHeaders has a proxy, which is next, add the app's headers to ours, and none
// of its own.
func keepOurHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Type"] = nil // or the server guesses it where the app says none
		if _, ours := w.Header()[legacyHeaders[0]]; ours {
			r = r.WithContext(context.WithValue(r.Context(), ourLegacyHeaders{}, true))
		}
		next.ServeHTTP(w, r)
	})
}

func dropLegacyHeaders(r *http.Response) {
	if r.Request.Context().Value(ourLegacyHeaders{}) != nil {
		for _, name := range legacyHeaders {
			r.Header.Del(name)
		}
	}
}

// finalHeaders has the headers that were set before an httputil.ReverseProxy is asked
// go with the final response. By itself it sends them with the first informational
// one, such as 103 Early Hints, and forgets them.
type finalHeaders struct {
	http.ResponseWriter
	ours     http.Header
	informed bool
}

func newFinalHeaders(w http.ResponseWriter) *finalHeaders {
	return &finalHeaders{ResponseWriter: w, ours: maps.Clone(w.Header())}
}

// WriteHeader implements http.ResponseWriter.
func (w *finalHeaders) WriteHeader(status int) {
	h := w.Header()
	switch informational := status < 200 && status != http.StatusSwitchingProtocols; {
	case informational && !w.informed:
		w.informed = true
		for name, values := range w.ours {
			if h[name] = h[name][len(values):]; len(h[name]) == 0 {
				delete(h, name)
			}
		}
	case !informational && w.informed:
		for name, values := range w.ours {
			h[name] = append(slices.Clip(values), h[name]...)
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w *finalHeaders) Unwrap() http.ResponseWriter { return w.ResponseWriter }
