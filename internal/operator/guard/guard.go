// Package guard keeps the operator API to those who are meant to have it: it is
// served at a loopback address without a password, to whoever may forward a port to
// the pod. Others can have a program that reaches loopback addresses send requests
// for them: a browser on the operator's machine, or the app in the pod. They choose
// the URL, and cannot choose all else.
//
// It imports the standard library, package operator and package respond only.
package guard

import (
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/netip"

	"github.com/tallyman-dev/tallyman/internal/operator"
	"github.com/tallyman-dev/tallyman/internal/respond"
)

// CheckAddress refuses an address to listen at that is not a loopback one with a
// port.
func CheckAddress(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("must be a loopback address with a port, such as 127.0.0.1:12082, not %q", address)
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
		return fmt.Errorf("must be a loopback address, such as 127.0.0.1:12082, not %q: "+
			"nobody is asked for a password there, and who is meant to come forwards a port to the pod", address)
	}
	return nil
}

// New serves routes, by their patterns, to requests that may be, and answers all
// others with a problem document.
//
// The header operator.Header shows that whoever made the request chose more than its
// URL: no web page can send it across origins without being allowed to. A Host of
// another name is that of a web page whose name was made to lead here (DNS
// rebinding), and which its browser takes for the same origin. The media type of JSON
// is one that no HTML form can send.
func New(routes map[string]http.Handler) http.Handler {
	mux := http.NewServeMux()
	for pattern, handler := range routes {
		mux.Handle(pattern, handler)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		respond.Problem(w, http.StatusNotFound, fmt.Sprintf("there is no %s %.80s here", r.Method, r.URL.Path))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !isLoopback(r.Host):
			respond.Problem(w, http.StatusForbidden, "the Host must be a loopback address or localhost")
		case r.Header.Get(operator.Header) == "":
			respond.Problem(w, http.StatusForbidden, "the header "+operator.Header+" is missing: it may have any value")
		case r.Method == http.MethodPost && !isJSON(r.Header.Get("Content-Type")):
			respond.Problem(w, http.StatusUnsupportedMediaType, "the Content-Type must be application/json")
		default:
			mux.ServeHTTP(w, r)
		}
	})
}

// isLoopback says whether a Host, with or without a port, is this very machine's.
func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if host == "localhost" {
		return true
	}
	if n := len(host); n > 2 && host[0] == '[' && host[n-1] == ']' {
		host = host[1 : n-1]
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

func isJSON(contentType string) bool {
	mediaType, _, err := mime.ParseMediaType(contentType)
	return err == nil && mediaType == "application/json"
}
