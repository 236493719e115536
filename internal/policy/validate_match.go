package policy

import (
	"fmt"
	"regexp"
	"strings"
)

// The forms of what requests are matched by. The CRD's schema has the same
// expressions.
var (
	methodForm = regexp.MustCompile(`^[A-Z]+(-[A-Z]+)*$`)
	// tokenForm is RFC 9110's token: names of headers and cookies.
	tokenForm    = regexp.MustCompile(`^[A-Za-z0-9!#$%&*+.^_|~\x27\x60-]+$`)
	templateForm = regexp.MustCompile(`^[^{}]*(/[{][^{}/]+[}](/[^{}]*)?)*$`)
)

func checkMatches(errs *Errors, path string, matches []Match) {
	checkCount(errs, path, len(matches), 0, MaxMatches)
	for i := range matches {
		matches[i].validate(errs, fmt.Sprintf("%s[%d]", path, i))
	}
}

func (m *Match) validate(errs *Errors, path string) {
	if m.Methods == nil && m.Path == nil && m.Headers == nil && m.Expression == "" {
		errs.Add(path, "must state at least one of methods, path, headers and expression: to limit every request, leave match out")
	}
	m.validateMethods(errs, path+".methods")
	if m.Path != nil {
		m.Path.validate(errs, path+".path")
	}
	if m.Headers != nil {
		checkCount(errs, path+".headers", len(m.Headers), 1, MaxHeaders)
	}
	for i := range m.Headers {
		m.Headers[i].validate(errs, fmt.Sprintf("%s.headers[%d]", path, i))
	}
	checkText(errs, path+".expression", m.Expression, 0, MaxExpressionLength)
}

func (m *Match) validateMethods(errs *Errors, path string) {
	if m.Methods != nil {
		checkCount(errs, path, len(m.Methods), 1, MaxMethods)
	}
	seen := make(map[string]bool)
	for i, method := range m.Methods {
		path := fmt.Sprintf("%s[%d]", path, i)
		checkText(errs, path, method, 0, MaxMethodLength)
		if !methodForm.MatchString(method) {
			errs.Add(path, "must be a method in capitals, such as POST")
		}
		if seen[method] {
			errs.Add(path, "%s is there twice: remove one", word(method))
		}
		seen[method] = true
	}
}

func (p *PathMatch) validate(errs *Errors, path string) {
	checkEnum(errs, path+".type", p.Type, PathExact, PathPrefix, PathTemplate, PathRegularExpression)
	checkText(errs, path+".value", p.Value, 1, MaxPathLength)
	if p.Type != PathRegularExpression && p.Value != "" && !strings.HasPrefix(p.Value, "/") {
		errs.Add(path+".value", "must start with /, such as /v1/orders")
	}
	if p.Type == PathTemplate && !templateForm.MatchString(p.Value) {
		errs.Add(path+".value", "must have braces only around the name of a whole segment, such as /v1/users/{id}")
	}
}

func (h *HeaderMatch) validate(errs *Errors, path string) {
	checkToken(errs, path+".name", h.Name, "must be a header's name, without spaces and colon, such as X-Plan")
	checkEnum(errs, path+".type", h.Type, HeaderExact, HeaderRegularExpression)
	checkText(errs, path+".value", h.Value, 0, MaxHeaderValue)
}

func (k *KeyPart) validate(errs *Errors, path string) {
	if k.count() != 1 {
		errs.Add(path, "must have exactly one of clientIP, header, cookie, queryParameter, path, method and expression: "+
			"to count by several attributes, write one entry for each")
	}
	if ip := k.ClientIP; ip != nil {
		checkInteger(errs, path+".clientIP.ipv4PrefixLength", int64(ip.IPv4PrefixLength), 1, 32)
		checkInteger(errs, path+".clientIP.ipv6PrefixLength", int64(ip.IPv6PrefixLength), 1, 128)
	}
	if k.Header != nil {
		checkToken(errs, path+".header.name", k.Header.Name, "must be a header's name, without spaces and colon, such as X-Api-Key")
	}
	if k.Cookie != nil {
		checkToken(errs, path+".cookie.name", k.Cookie.Name, "must be a cookie's name, without spaces, = and ;, such as session")
	}
	if k.QueryParameter != nil {
		checkText(errs, path+".queryParameter.name", k.QueryParameter.Name, 1, MaxParameterName)
	}
	checkText(errs, path+".expression", k.Expression, 0, MaxExpressionLength)
}

// count is how many of the fields are set.
func (k *KeyPart) count() int {
	n := 0
	for _, set := range []bool{
		k.ClientIP != nil, k.Header != nil, k.Cookie != nil, k.QueryParameter != nil,
		k.Path != nil, k.Method != nil, k.Expression != "",
	} {
		if set {
			n++
		}
	}
	return n
}

func checkToken(errs *Errors, path, name, message string) {
	checkText(errs, path, name, 0, MaxHeaderName)
	if !tokenForm.MatchString(name) {
		errs.Add(path, "%s", message)
	}
}
