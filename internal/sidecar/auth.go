package sidecar

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/tallyman-dev/tallyman/internal/respond"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
	"github.com/tallyman-dev/tallyman/pkg/tallyman/httplimit"
)

// The headers in which a proxy describes the request that it asks about.
const (
	forwardedMethod = "X-Forwarded-Method"
	forwardedURI    = "X-Forwarded-Uri"
	forwardedHost   = "X-Forwarded-Host"
	forwardedFor    = "X-Forwarded-For"
)

// forwardAuth decides for proxies that ask before they pass a request on, such as
// Traefik's ForwardAuth, Caddy's forward_auth and nginx's auth_request. Status 200
// lets the request pass, and any other is the answer to it.
//
// Its headers are those of the request. What else there is to say of it the proxy
// must say in headers of its own, which it must not take from the client. A proxy
// that does not is answered 400 for every request: requests that look all the same
// would be counted as those of one client. The query is the client's where a proxy
// keeps it, as Caddy does, and is not looked at.
type forwardAuth struct {
	admitter httplimit.Admitter
	// hops are the proxies that append to X-Forwarded-For, the one that asks
	// among them.
	hops int
	// forNginx refusals have status 403, and the true one in a header: auth_request
	// makes 500 of anything but 2xx, 401 and 403.
	forNginx  bool
	log       *slog.Logger
	complaint occasion
}

func newForwardAuth(a httplimit.Admitter, trustedHops int, forNginx bool, log *slog.Logger) *forwardAuth {
	return &forwardAuth{admitter: a, hops: max(1, trustedHops), forNginx: forNginx, log: log}
}

// ServeHTTP implements http.Handler.
func (a *forwardAuth) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request, err := a.describe(r)
	if err != nil {
		// Not every proxy shows anyone what we answer.
		if a.complaint.due(time.Now()) {
			a.log.Warn("A proxy asks by forward-auth in a way that cannot be answered", "error", err)
		}
		respond.Problem(w, http.StatusBadRequest, err.Error())
		return
	}
	d := a.admitter.Admit(r.Context(), request)
	d.Release() // nobody tells when the request has ended
	if d.Allowed {
		httplimit.SetHeaders(w.Header(), d)
		return
	}
	if a.forNginx {
		w = as403{w}
	}
	httplimit.Refuse(w, withoutContentType(r), d)
}

// describe is the request that a proxy asks about. Errors tell nothing of it: they
// are logged.
func (a *forwardAuth) describe(r *http.Request) (tallyman.Request, error) {
	for _, name := range []string{forwardedMethod, forwardedURI, forwardedHost} {
		if values := r.Header[name]; len(values) != 1 || values[0] == "" {
			return tallyman.Request{}, fmt.Errorf("the header %s must be there once, and not empty: "+
				"the proxy has to set it to what the client asks for, in the place of what the client sent", name)
		}
	}
	uri := r.Header.Get(forwardedURI)
	if uri[0] != '/' {
		return tallyman.Request{}, fmt.Errorf("the header %s must be the path and the query, such as /v1/orders?page=2", forwardedURI)
	}
	// The peer is the proxy, and never the client.
	ip := tallyman.ClientIP("", r.Header[forwardedFor], a.hops)
	if !ip.IsValid() {
		return tallyman.Request{}, fmt.Errorf("the header %s must have the client's address as entry %d from the right: "+
			"each of so many proxies (--trusted-hops) has to append the address that it sees", forwardedFor, a.hops)
	}
	request := httplimit.Request(r)
	request.Method, request.Host, request.ClientIP = r.Header.Get(forwardedMethod), r.Header.Get(forwardedHost), ip
	request.Path, request.RawQuery = tallyman.SplitTarget(uri)
	return request, nil
}

// withoutContentType is a request that is refused by an HTTP status, though a
// client may have called it gRPC: those refusals have status 200, by which a proxy
// would let the request pass.
func withoutContentType(r *http.Request) *http.Request {
	plain := r.WithContext(r.Context())
	plain.Header = maps.Clone(r.Header)
	delete(plain.Header, "Content-Type")
	return plain
}

// as403 answers 403 and tells the true status in a header.
type as403 struct{ http.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w as403) WriteHeader(status int) {
	w.Header().Set("X-Tallyman-Status", strconv.Itoa(status))
	w.ResponseWriter.WriteHeader(http.StatusForbidden)
}

// Unwrap is for http.ResponseController.
func (w as403) Unwrap() http.ResponseWriter { return w.ResponseWriter }
