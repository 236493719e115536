package convert

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// The headers in which policies find a call's domain and the keys of a descriptor, see
// internal/sidecar/envoy.
const (
	domainHeader     = "X-Envoy-Domain"
	descriptorHeader = "X-Envoy-Descriptor"
)

// step is a descriptor among those of its level.
type step struct {
	*descriptor
	siblings []*descriptor
	// header has the value of the entry: the key's, or KEY-2 for the second entry of
	// a key.
	header string
}

// path leads from the top of a domain to a descriptor.
type path []step

// to is the path that goes on to a descriptor of the next level.
func (p path) to(d *descriptor, level []*descriptor) path {
	header := d.key
	for n := 2; slices.ContainsFunc(p, func(s step) bool { return sameHeader(s.header, header) }); n++ {
		header = d.key + "-" + strconv.Itoa(n)
	}
	return append(slices.Clip(p), step{d, level, header})
}

func sameHeader(a, b string) bool { return http.CanonicalHeaderKey(a) == http.CanonicalHeaderKey(b) }

func (p path) last() step { return p[len(p)-1] }

// match is for descriptors of a call that have the entries of the path and no others.
func (p path) match(domain string) policy.Match {
	keys := make([]string, len(p))
	for i, s := range p {
		keys[i] = s.key
	}
	m := policy.Match{Headers: []policy.HeaderMatch{
		{Name: domainHeader, Value: domain}, {Name: descriptorHeader, Value: strings.Join(keys, ",")},
	}}
	var expressions []string
	for _, s := range p {
		switch {
		case s.isAny() || s.value == "*":
		case isToken(s.header):
			m.Headers = append(m.Headers, headerMatch(s.header, s.value))
		default:
			expressions = append(expressions, comparison(s.header, s.value))
		}
	}
	m.Expression = strings.Join(expressions, " && ")
	return m
}

// except takes out what a sibling of the path is more specific about, unless it is
// merged into the limit.
func (p path) except(merged map[*descriptor]bool) (all []policy.Match) {
	for i, s := range p {
		var values []string
		for _, other := range s.siblings {
			isMerged := i == len(p)-1 && s.isAny() && merged[other]
			if other.isMoreSpecific(s) && !isMerged {
				values = append(values, other.value)
			}
		}
		all = append(all, matchesOf(s.header, values)...)
	}
	return all
}

// isMoreSpecific says whether a descriptor goes before another one of its level for
// values that both are for: single values before patterns in their order, and these
// before any value.
func (d *descriptor) isMoreSpecific(than step) bool {
	if d == than.descriptor || d.key != than.key || d.isAny() || than.isSingle() {
		return false
	}
	if than.isAny() {
		return true
	}
	prefix, isPattern := d.prefix()
	others, _ := than.prefix()
	if !isPattern {
		return strings.HasPrefix(d.value, others)
	}
	return d.order < than.order && (strings.HasPrefix(prefix, others) || strings.HasPrefix(others, prefix))
}

// keyParts are what the rate limit service keeps counters apart by, as far as the
// path does not tell it.
func (p path) keyParts() (parts []policy.KeyPart) {
	addressSeen := false
	for _, s := range p {
		isAddress := s.key == "remote_address" || s.key == "masked_remote_address"
		_, isPattern := s.prefix()
		if s.isAny() || isPattern && !s.shares {
			parts = append(parts, s.keyPart(isAddress && !addressSeen))
		}
		addressSeen = addressSeen || isAddress
	}
	return parts
}

// keyPart counts by the value of the step's entry. The first address of a descriptor
// is the client's.
func (s step) keyPart(isClient bool) policy.KeyPart {
	switch {
	case isClient:
		return policy.KeyPart{ClientIP: &policy.ClientIPKey{IPv6PrefixLength: 128}}
	case isToken(s.header):
		return policy.KeyPart{Header: &policy.NamedKey{Name: s.header}}
	default:
		return policy.KeyPart{Expression: headerExpression(s.header)}
	}
}

// token is what RFC 9110 allows for a header's name. Entries can have other keys, and
// only expressions can name these.
var token = regexp.MustCompile("^[A-Za-z0-9!#$%&*+.^_|~'`-]+$")

func isToken(name string) bool { return token.MatchString(name) }

// maxAlternatives bounds a regular expression, in bytes: policies allow as many
// characters.
const maxAlternatives = 1000

// matchesOf are met by values, some of which may be patterns. Many are put together.
func matchesOf(header string, values []string) (all []policy.Match) {
	if !isToken(header) {
		for _, value := range values {
			all = append(all, policy.Match{Expression: comparison(header, value)})
		}
		return all
	}
	if len(values) == 1 {
		return []policy.Match{{Headers: []policy.HeaderMatch{headerMatch(header, values[0])}}}
	}
	var alternatives []string
	size := 0
	flush := func() {
		if len(alternatives) > 0 {
			expression := strings.Join(alternatives, "|")
			all = append(all, policy.Match{Headers: []policy.HeaderMatch{{Name: header, Type: policy.HeaderRegularExpression, Value: expression}}})
		}
		alternatives, size = nil, 0
	}
	for _, value := range values {
		expression := regularExpression(header, value)
		if size += len(expression) + 1; size > maxAlternatives {
			flush()
			size = len(expression)
		}
		alternatives = append(alternatives, expression)
	}
	flush()
	return all
}

// headerMatch is met by a value or, if it ends with *, by those that begin so.
func headerMatch(header, value string) policy.HeaderMatch {
	if strings.HasSuffix(value, "*") {
		return policy.HeaderMatch{Name: header, Type: policy.HeaderRegularExpression, Value: regularExpression(header, value)}
	}
	return policy.HeaderMatch{Name: header, Value: asCompared(header, value)}
}

func regularExpression(header, value string) string {
	prefix, isPattern := strings.CutSuffix(asCompared(header, value), "*")
	if isPattern {
		return regexp.QuoteMeta(prefix) + ".*"
	}
	return regexp.QuoteMeta(prefix)
}

// asCompared is the value as policies compare it, who know hosts in lower case.
func asCompared(header, value string) string {
	if sameHeader(header, "Host") {
		return strings.ToLower(value)
	}
	return value
}

func headerExpression(header string) string { return fmt.Sprintf("request.headers[%q]", header) }

// comparison is headerMatch as an expression. What Go quotes, CEL reads the same way.
func comparison(header, value string) string {
	if prefix, isPattern := strings.CutSuffix(value, "*"); isPattern {
		return fmt.Sprintf("%s.startsWith(%q)", headerExpression(header), prefix)
	}
	return fmt.Sprintf("%s == %q", headerExpression(header), value)
}
