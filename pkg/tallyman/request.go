package tallyman

import (
	"net/http"
	"net/netip"
	"strings"

	"github.com/tallyman-dev/tallyman/internal/match"
)

// Request is what policies can look at. The body is never read.
type Request struct {
	Method string
	// Host is the authority that the client named, with or without a port.
	Host string
	// Path is the escaped path as it was sent, without the query. It is
	// normalised before it is compared.
	Path string
	// RawQuery is the escaped query, without the question mark.
	RawQuery string
	// Header has canonical names, as net/http makes them. It is not changed.
	Header http.Header
	// RemoteAddr is the direct peer, with or without a port; empty when it is
	// not known.
	RemoteAddr string
	// ClientIP is the client's address. The zero value has it worked out from
	// RemoteAddr, X-Forwarded-For and Options.TrustedHops.
	ClientIP netip.Addr
	// Hits is how many requests this one stands for: what it costs in each limit
	// is multiplied by it. Less than 1 counts as 1.
	Hits int64
}

// ClientIP tells the address of a client behind so many proxies as
// Options.TrustedHops says, for Request.ClientIP where a request does not come from
// a connection. Each of the proxies appends the address that it sees to
// X-Forwarded-For, whose values are forwardedFor; what stands to the left of theirs
// was sent by the client, and is not read. With fewer entries than hops, and with one
// that is no address, it is the peer's, remoteAddr; the zero Addr is an unknown one.
func ClientIP(remoteAddr string, forwardedFor []string, trustedHops int) netip.Addr {
	return match.ClientIP(remoteAddr, forwardedFor, trustedHops)
}

// SplitTarget splits a request's target, such as /v1/orders?page=2, for Request.Path
// and Request.RawQuery where it does not come parsed. A fragment belongs to neither.
func SplitTarget(target string) (path, rawQuery string) { return match.SplitTarget(target) }

// matchable is the request as the matchers take it.
func (r *Request) matchable(trustedHops int) match.Request {
	ip := r.ClientIP
	if !ip.IsValid() {
		ip = ClientIP(r.RemoteAddr, r.Header["X-Forwarded-For"], trustedHops)
	}
	return match.Request{
		Method: r.Method, Host: r.Host, Path: r.Path, RawQuery: r.RawQuery,
		Header: r.Header, ClientIP: ip,
	}
}

// isProbe recognises a kubelet's HTTP probe. Its User-Agent can be sent by
// anyone, so it counts only when it comes straight from one of the sources and
// by way of no proxy.
func (r *Request) isProbe(sources []netip.Prefix) bool {
	if r.Method != http.MethodGet || !strings.HasPrefix(r.Header.Get("User-Agent"), "kube-probe/") {
		return false
	}
	for _, name := range []string{"X-Forwarded-For", "Forwarded", "Via"} {
		if _, proxied := r.Header[name]; proxied {
			return false
		}
	}
	peer := match.ClientIP(r.RemoteAddr, nil, 0)
	for _, source := range sources {
		if source.Contains(peer) {
			return true
		}
	}
	return false
}
