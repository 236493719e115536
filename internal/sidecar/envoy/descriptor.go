package envoy

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// The bounds of a call, besides maxMessage.
const (
	maxDescriptors = 32
	maxEntries     = 64 // of a descriptor
)

// The headers that policies find a call's domain in, and the keys of a descriptor's
// entries, in their order and with commas between them.
const (
	domainHeader     = "X-Envoy-Domain"
	descriptorHeader = "X-Envoy-Descriptor"
)

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

// describe makes of an empty request the one that a descriptor describes. Each entry
// is a header, and those with well-known keys are other parts as well, as docs/envoy.md
// has them. The first of several entries for one part counts.
func describe(r *tallyman.Request, domain string, d *ratelimitpb.RateLimitDescriptor, hits int64) {
	r.Hits = hits
	for _, e := range d.GetEntries() {
		key, value := e.GetKey(), e.GetValue()
		switch key {
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
		}
		addEntry(r.Header, key, value)
	}
	of := [...]string{domain, keysOf(d)}
	r.Header[domainHeader], r.Header[descriptorHeader] = of[:1:1], of[1:]
}

// addEntry adds an entry to the headers: the second one of a key is KEY-2, the third
// KEY-3, so that policies can tell them apart.
func addEntry(h http.Header, key, value string) {
	first := http.CanonicalHeaderKey(key)
	name := first
	for n := 2; len(h[name]) > 0; n++ {
		name = first + "-" + strconv.Itoa(n)
	}
	h[name] = []string{value}
}

func keysOf(d *ratelimitpb.RateLimitDescriptor) string {
	entries := d.GetEntries()
	if len(entries) == 1 {
		return entries[0].GetKey()
	}
	var keys strings.Builder
	for i, e := range entries {
		if i > 0 {
			keys.WriteByte(',')
		}
		keys.WriteString(e.GetKey())
	}
	return keys.String()
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
