package match

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// Named is the Outcome, without its cost, of requests that have these values of the
// key's parts, whatever else they are: it finds the counter that people name. Values
// are as Explanation has them. An address stands for its network, a method may be in
// lower case, and a path in any spelling. The error says what is wrong with the
// values, and repeats none of them.
func (l *Limit) Named(values []string) (Outcome, error) {
	o := Outcome{Verdict: Count, Override: NoOverride, Key: sharedKey}
	if len(values) != len(l.key.parts) {
		return o, fmt.Errorf("the key has %d values, and not %d: %s", len(l.key.parts), len(values), l.key.describe())
	}
	var out []byte
	for i, value := range values {
		before := len(out)
		var err error
		if out, err = l.key.parts[i].appendNamed(out, value); err != nil {
			return o, fmt.Errorf("key[%d]: %w", i, err)
		}
		if len(out) > before {
			continue
		}
		if l.key.onMissing != policy.MissingShare {
			return o, fmt.Errorf("key[%d]: the value is empty, and requests without one are not counted, by onMissingKey: %s", i, l.key.onMissing)
		}
		out = append(out, markMissing)
	}
	if len(out) > 0 {
		o.Key = string(out)
		l.overrides.apply(&o)
	}
	return o, nil
}

// appendNamed adds the encoding of a value that somebody wrote, or nothing when it
// is empty.
func (p *keyPart) appendNamed(out []byte, value string) ([]byte, error) {
	switch {
	case value == "":
		return out, nil
	case p.attribute == attrClientIP:
		addr, err := p.namedAddress(value)
		return p.appendAddress(out, addr), err
	case p.attribute == attrPath && value[0] != '/':
		return out, errors.New("a path starts with a slash, such as /v1/orders")
	case p.attribute == attrPath:
		value = normalizePath(value)
	case p.attribute == attrMethod:
		value = strings.ToUpper(value)
	case p.attribute == attrHeader && p.name == "Host":
		value = strings.ToLower(value)
	}
	return p.appendValue(out, value), nil
}

// namedAddress reads an address, or a network that has a counter.
func (p *keyPart) namedAddress(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err == nil {
		return addr.Unmap().WithZone(""), nil
	}
	network, err := netip.ParsePrefix(text)
	if err != nil {
		return addr, errors.New("clientIP is an address without a port, such as 192.0.2.7 or 2001:db8::1")
	}
	if network.Bits() != p.prefixLength(network.Addr()) {
		return addr, fmt.Errorf("clientIP has a counter for each /%d of IPv4 and each /%d of IPv6, and for no other networks", p.ipv4, p.ipv6)
	}
	return network.Addr(), nil
}

// describe lists the parts of a key.
func (k key) describe() string {
	if len(k.parts) == 0 {
		return "the limit has one counter for all"
	}
	names := make([]string, len(k.parts))
	for i := range k.parts {
		names[i] = k.parts[i].describe()
	}
	return strings.Join(names, ", ")
}

func (p *keyPart) describe() string {
	switch p.attribute {
	case attrClientIP:
		return "clientIP"
	case attrMethod:
		return "method"
	case attrPath:
		return "path"
	case attrHeader:
		return "header " + p.name
	case attrCookie:
		return "cookie " + p.name
	case attrQueryParameter:
		return "queryParameter " + p.name
	default:
		return "expression"
	}
}
