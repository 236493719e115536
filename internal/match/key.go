package match

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

const (
	// MaxKeyLength bounds Outcome.Key, in bytes: a literal part takes most,
	// two digits of length and a colon before its text.
	MaxKeyLength = policy.MaxKeyParts * (3 + maxLiteral)

	// maxLiteral is the longest text that stands in a key as it is.
	maxLiteral = 64
	// sharedKey is the key of a limit without key parts. No encoded part
	// starts with its character.
	sharedKey = "*"
	// hashSize is 128 bits: no two values meet by chance, nor by effort worth
	// a counter.
	hashSize = 16
)

// The encoding of a part begins with what it is, and tells where it ends:
// decimal digits, a colon and that many bytes; or a mark and 32 hexadecimal
// digits; or the mark of a missing part. So a key can be read in one way only.
const (
	markHash    = '#'
	markMissing = '-'
)

// attribute is what a key part reads of a request.
type attribute int

const (
	attrClientIP attribute = iota
	attrMethod
	attrPath
	attrHeader
	attrCookie
	attrQueryParameter
	attrExpression
)

// key makes the keys of a limit.
type key struct {
	parts     []keyPart
	onMissing policy.OnMissingKey
}

// keyPart is a compiled policy.KeyPart. It is a struct with a switch and not
// an interface, so that a key is built on the stack.
type keyPart struct {
	attribute  attribute
	name       string
	ipv4, ipv6 int
	expression *expression
	unreadable *EvaluationError
}

func (c *compiler) key(path string, l *policy.Limit) key {
	k := key{parts: make([]keyPart, len(l.Key)), onMissing: l.OnMissingKey}
	for i := range l.Key {
		k.parts[i] = c.keyPart(fmt.Sprintf("%s[%d]", path, i), &l.Key[i])
	}
	return k
}

func (c *compiler) keyPart(path string, p *policy.KeyPart) keyPart {
	switch {
	case p.ClientIP != nil:
		return keyPart{attribute: attrClientIP, ipv4: int(p.ClientIP.IPv4PrefixLength), ipv6: int(p.ClientIP.IPv6PrefixLength)}
	case p.Method != nil:
		return keyPart{attribute: attrMethod}
	case p.Path != nil:
		return keyPart{attribute: attrPath}
	case p.Header != nil:
		return keyPart{attribute: attrHeader, name: http.CanonicalHeaderKey(p.Header.Name)}
	case p.Cookie != nil:
		return keyPart{attribute: attrCookie, name: p.Cookie.Name, unreadable: tooLong(path + ".cookie")}
	case p.QueryParameter != nil:
		return keyPart{attribute: attrQueryParameter, name: p.QueryParameter.Name, unreadable: tooLong(path + ".queryParameter")}
	case p.Expression != "":
		return keyPart{attribute: attrExpression, expression: c.expression(path+".expression", p.Expression, stringResult)}
	default:
		c.errs.Add(path, "is empty: set one of clientIP, header, cookie, queryParameter, path, method and expression")
		return keyPart{}
	}
}

// of builds the request's key, or says what becomes of a request that lacks a
// part of it.
func (k key) of(r *Request, o *Outcome) (Verdict, string) {
	if len(k.parts) == 0 {
		return Count, sharedKey
	}
	var buffer [128]byte
	out := buffer[:0]
	for i := range k.parts {
		before := len(out)
		out = k.parts[i].append(out, r, o)
		if len(out) > before {
			continue
		}
		switch k.onMissing {
		case policy.MissingSkip:
			return Skip, ""
		case policy.MissingDeny:
			return Deny, ""
		default:
			out = append(out, markMissing)
		}
	}
	return Count, string(out)
}

// append adds the part's encoding, or nothing when the request lacks it. An
// empty value is a missing one: a client gets no counter of its own by sending
// a header without a value.
func (p *keyPart) append(out []byte, r *Request, o *Outcome) []byte {
	if p.attribute == attrClientIP {
		return p.appendAddress(out, r.clientIP())
	}
	value, fault := p.value(r)
	o.record(fault)
	return p.appendValue(out, value)
}

// appendValue adds the encoding of a value. Only methods and paths stand in a
// key as they are; other attributes may hold credentials.
func (p *keyPart) appendValue(out []byte, value string) []byte {
	if p.attribute == attrMethod || p.attribute == attrPath {
		return appendLiteral(out, value)
	}
	return appendHash(out, value)
}

// value is that of an attribute which is a text.
func (p *keyPart) value(r *Request) (string, *EvaluationError) {
	switch p.attribute {
	case attrMethod:
		return r.method(), nil
	case attrPath:
		return r.path(), nil
	case attrHeader:
		value, _ := r.firstHeader(p.name)
		return value, nil
	case attrCookie:
		return p.parameter(r.cookies())
	case attrQueryParameter:
		return p.parameter(r.query())
	default:
		return evaluate[string](p.expression, r)
	}
}

func (p *keyPart) parameter(v *values) (string, *EvaluationError) {
	if v.err != nil {
		return "", p.unreadable
	}
	return v.first[p.name], nil
}

// isChosen says whether clients choose the value. They do so with methods and paths,
// too.
func (p keyPart) isChosen() bool {
	switch p.attribute {
	case attrClientIP:
		return false
	case attrExpression:
		return p.expression.seesWhatIsChosen
	default:
		return true
	}
}

// appendAddress adds the address with the host's bits cleared, or nothing when
// it is not known.
func (p *keyPart) appendAddress(out []byte, addr netip.Addr) []byte {
	network, err := addr.Prefix(p.prefixLength(addr))
	if err != nil || !network.IsValid() {
		return out
	}
	var buffer [maxLiteral]byte
	return appendText(out, network.Addr().AppendTo(buffer[:0]))
}

func (p *keyPart) prefixLength(addr netip.Addr) int {
	if addr.Is4() {
		return p.ipv4
	}
	return p.ipv6
}

// appendLiteral adds a value as it is while it is short, and hashed beyond.
func appendLiteral(out []byte, value string) []byte {
	if value == "" {
		return out
	}
	if len(value) > maxLiteral {
		return appendHash(out, value)
	}
	return appendText(out, value)
}

func appendText[T string | []byte](out []byte, text T) []byte {
	out = strconv.AppendInt(out, int64(len(text)), 10)
	out = append(out, ':')
	return append(out, text...)
}

// appendHash adds the first 128 bits of the value's SHA-256.
func appendHash(out []byte, value string) []byte {
	if value == "" {
		return out
	}
	var buffer [256]byte
	sum := sha256.Sum256(append(buffer[:0], value...))
	return hex.AppendEncode(append(out, markHash), sum[:hashSize])
}
