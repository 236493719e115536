package match

import (
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"
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
	texts := l.texts(r, client)
	for i := range texts {
		if texts[i] == "" {
			texts[i] = textMissing
		}
	}
	return strings.Join(texts, ", ")
}

// texts are those of the key's parts, in their order; "" is one that the request lacks.
func (l *Limit) texts(r *Request, client string) []string {
	var texts []string
	for i := range l.key.parts {
		texts = append(texts, l.key.parts[i].text(r, client))
	}
	return texts
}

// CutText is what a text of a key begins with, at most so many bytes of it, in whole
// characters and with an ellipsis for the rest. Clients choose the text, which can have
// any bytes: a character has no more than three after its first.
func CutText(text string, most int) string {
	if len(text) <= most {
		return text
	}
	end := most
	for end > 0 && end > most-utf8.UTFMax+1 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}

// PublicText is the text of an Outcome's key without what may be secret: addresses,
// methods and paths are as they are, and of other values it has the hash.
func PublicText(key string) string {
	var texts []string
	for key != "" {
		var text string
		text, key = nextText(key)
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

// nextText splits off a key's first part. Keys are ours, and well-formed.
func nextText(key string) (text, rest string) {
	switch key[0] {
	case markHash:
		return key[:1+2*hashSize], key[1+2*hashSize:]
	case markMissing:
		return textMissing, key[1:]
	case sharedKey[0]:
		return textShared, key[1:]
	}
	digits, rest, _ := strings.Cut(key, ":")
	n, _ := strconv.Atoi(digits)
	return rest[:n], rest[n:]
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
