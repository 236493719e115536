package envoy

import (
	"errors"
	"fmt"
	"math"
	"net/netip"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// The bounds of a call, besides maxMessage.
const (
	maxDescriptors = 32
	maxEntries     = 64 // of a descriptor
)

// domainHeader is the header that policies find a call's domain in.
const domainHeader = "X-Envoy-Domain"

// validate refuses what the protocol forbids, and what is out of bounds.
func validate(in *rlspb.RateLimitRequest) error {
	n := len(in.GetDescriptors())
	switch {
	case in.GetDomain() == "":
		return errors.New("domain is empty: set it in the rate limit filter's configuration")
	case n == 0:
		return errors.New("descriptors is empty: a call needs at least one")
	case n > maxDescriptors:
		return fmt.Errorf("descriptors has %d items: it may have %d", n, maxDescriptors)
	}
	for i, d := range in.GetDescriptors() {
		if n := len(d.GetEntries()); n == 0 || n > maxEntries {
			return fmt.Errorf("descriptors[%d].entries has %d items: it must have 1 to %d", i, n, maxEntries)
		}
	}
	return nil
}

// describe makes of an empty request the one that a descriptor describes. Entries
// with well-known keys are its parts, as docs/envoy.md has them; all others are
// headers by the names of their keys. The first of several entries for one part
// counts.
func describe(r *tallyman.Request, domain string, d *ratelimitpb.RateLimitDescriptor, hits int64) {
	r.Hits = hits
	for _, e := range d.GetEntries() {
		switch value := e.GetValue(); e.GetKey() {
		case "method", ":method":
			setFirst(&r.Method, value)
		case "host", ":authority":
			setFirst(&r.Host, value)
		case "path", ":path":
			if r.Path == "" {
				r.Path, r.RawQuery = tallyman.SplitTarget(value)
			}
		case "remote_address", "masked_remote_address":
			if !r.ClientIP.IsValid() {
				r.ClientIP = address(value)
			}
		default:
			r.Header.Add(e.GetKey(), value)
		}
	}
	r.Header[domainHeader] = []string{domain}
}

func setFirst(part *string, value string) {
	if *part == "" {
		*part = value
	}
}

// address reads an address, or the network that Envoy has made of it; what is
// none is the zero Addr.
func address(text string) netip.Addr {
	if addr, err := netip.ParseAddr(text); err == nil {
		return addr
	}
	network, _ := netip.ParsePrefix(text)
	return network.Addr()
}

// hitsOf is how many hits a descriptor of a call adds: its own hits_addend, or
// that of the call, where 0 is the same as none, and means 1.
func hitsOf(in *rlspb.RateLimitRequest, d *ratelimitpb.RateLimitDescriptor) int64 {
	if own := d.GetHitsAddend(); own != nil {
		return int64(min(own.GetValue(), math.MaxInt64))
	}
	return max(1, int64(in.GetHitsAddend()))
}
