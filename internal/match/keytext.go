package match

import (
	"net/netip"
	"strings"
)

// The texts of keys that have no value.
const (
	textShared  = "(all)"
	textMissing = "(missing)"
)

// KeyText is the key of a request for people: the values themselves, with a comma
// between them. It may hold secrets, and is for whoever has the request anyway.
// A client that is not empty stands in place of the client's address.
func (l *Limit) KeyText(r *Request, client string) string {
	if len(l.key.parts) == 0 {
		return textShared
	}
	texts := make([]string, len(l.key.parts))
	for i := range l.key.parts {
		if texts[i] = l.key.parts[i].text(r, client); texts[i] == "" {
			texts[i] = textMissing
		}
	}
	return strings.Join(texts, ", ")
}

func (p *keyPart) text(r *Request, client string) string {
	if p.attribute == attrClientIP {
		if client != "" {
			return client
		}
		return p.addressText(r.clientIP())
	}
	value, _ := p.value(r)
	return value
}

// addressText is the address, or the network where that has the counter.
func (p *keyPart) addressText(addr netip.Addr) string {
	network, err := addr.Prefix(p.prefixLength(addr))
	switch {
	case err != nil || !network.IsValid():
		return ""
	case network.IsSingleIP():
		return addr.String()
	default:
		return network.String()
	}
}
