package upstream

import (
	"net/http"
	"net/textproto"
	"strings"
)

// isHopByHop says whether a header of a response is for the proxy alone.
func isHopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	default:
		return false
	}
}

// addEndToEnd adds to dst the headers of a response that are for the client. It takes
// src over.
func addEndToEnd(dst, src http.Header) {
	for _, line := range src["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			src.Del(textproto.TrimString(name))
		}
	}
	for name, values := range src {
		switch {
		case isHopByHop(name):
		case len(dst[name]) == 0:
			dst[name] = values
		default:
			dst[name] = append(dst[name], values...)
		}
	}
}
