package upstream

import (
	"net/http"
	"strings"
)

// IsPlain says whether a Forwarder takes a request that a server has received. Plain
// requests can be sent twice: they have no body, and a method that changes nothing.
func IsPlain(r *http.Request) bool {
	return isReplayable(r) && hasOrdinaryTarget(r) && concernsNoConnection(r)
}

func isReplayable(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return r.Body == http.NoBody && len(r.TransferEncoding) == 0
	default:
		return false
	}
}

// hasOrdinaryTarget says whether the target is a path with or without a query, and the
// host is known and has no IPv6 zone: then both are sent as they came.
func hasOrdinaryTarget(r *http.Request) bool {
	u := r.URL
	return u.Scheme == "" && u.Opaque == "" && u.Host == "" && r.Host != "" && !strings.Contains(r.Host, "%")
}

// concernsNoConnection says whether a request is HTTP/1.1, and has no header that asks
// the proxy for more than to pass it on.
func concernsNoConnection(r *http.Request) bool {
	if r.ProtoMajor != 1 || r.ProtoMinor != 1 {
		return false
	}
	for _, name := range []string{"Upgrade", "Expect", "Te", "Trailer"} {
		if _, present := r.Header[name]; present {
			return false
		}
	}
	for _, value := range r.Header["Connection"] {
		if !strings.EqualFold(value, "keep-alive") && !strings.EqualFold(value, "close") {
			return false
		}
	}
	return true
}
