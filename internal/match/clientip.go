package match

import (
	"net/netip"
	"slices"
	"strings"
)

// maxAddress is longer than any address with brackets, zone and port that is
// worth reading.
const maxAddress = 128

// ClientIP tells the address of a client behind trustedHops proxies, each of
// which appends the address that it sees to X-Forwarded-For. The nearest proxy
// is the peer itself, remoteAddr, so the client is the trustedHops-th entry
// from the right. What stands to the left of it was sent by the client and is
// never read.
//
//   - With no trusted hop, the client is the peer.
//   - With fewer entries than hops the request did not come by way of all the
//     proxies, and with a junk entry a proxy did not append an address: the
//     client is the peer, which nobody can forge.
//   - Several header lines count as one, joined in their order; empty entries
//     do not count.
//   - Ports, brackets and zones are removed, IPv4-mapped addresses are IPv4.
//   - The zero Addr means unknown, such as for the peer of a unix socket.
func ClientIP(remoteAddr string, xff []string, trustedHops int) netip.Addr {
	if trustedHops > 0 {
		if addr := parseAddress(entryFromRight(xff, trustedHops)); addr.IsValid() {
			return addr
		}
	}
	return parseAddress(remoteAddr)
}

// entryFromRight is the n-th entry, counted from the right from 1, or "".
func entryFromRight(lines []string, n int) string {
	for _, line := range slices.Backward(lines) {
		rest, more := line, true
		for more {
			var entry string
			rest, entry, more = cutLast(rest)
			if entry == "" {
				continue
			}
			if n--; n == 0 {
				return entry
			}
		}
	}
	return ""
}

// cutLast splits the last entry off a comma-separated list; more says that
// there are entries before it.
func cutLast(list string) (before, last string, more bool) {
	i := strings.LastIndexByte(list, ',')
	return list[:max(i, 0)], strings.TrimSpace(list[i+1:]), i >= 0
}

// parseAddress reads an address with or without brackets, zone and port; what
// is none is the zero Addr.
func parseAddress(s string) netip.Addr {
	s = strings.TrimSpace(s)
	if s == "" || len(s) > maxAddress { // no errors are made for what is often not there
		return netip.Addr{}
	}
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	if err != nil {
		withPort, _ := netip.ParseAddrPort(s)
		addr = withPort.Addr()
	}
	return addr.Unmap().WithZone("")
}
