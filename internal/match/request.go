package match

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

const (
	// MaxInput is the longest path, query, header, or sum of cookies, in
	// bytes, that expressions, regular expressions and parsers look into. It
	// is what common servers take as a request line; a longer one is answered
	// by the safe side.
	MaxInput = 8 << 10
	// maxHeaders bounds the header names that an expression can go through.
	maxHeaders = 256
)

// SplitTarget splits the target of a request's first line, such as
// /v1/orders?page=2, into the escaped path and the query. A fragment, which has no
// business there but which anyone can send, belongs to neither: nginx and other
// servers drop it, and /login#x must not slip past a limit of /login.
func SplitTarget(target string) (path, rawQuery string) {
	target, _, _ = strings.Cut(target, "#")
	path, rawQuery, _ = strings.Cut(target, "?")
	return path, rawQuery
}

// errTooLong marks an input above MaxInput.
var errTooLong = errors.New("input is too long")

// Request is what matching needs of a request. Its fields must not change once
// it has been evaluated, since what is derived from them is kept. A Request is
// for one goroutine at a time.
type Request struct {
	// Method is compared in upper case. Methods are case-sensitive, but some
	// servers take post for POST, and it must not slip past a limit there.
	Method string
	// Host is the authority that the client named, with or without a port.
	Host string
	// Path is the escaped path as it was sent, without the query.
	Path string
	// RawQuery is the escaped query, without the question mark.
	RawQuery string
	// Header has canonical names, as net/http makes them. A Host header is
	// looked up in Host.
	Header http.Header
	// ClientIP is zero when it is not known.
	ClientIP netip.Addr

	cachedPath        string
	cachedHost        string
	cachedHeaderNames []string
	cachedQuery       *values
	cachedCookies     *values
}

// values are parsed parameters, or why they could not be parsed.
type values struct {
	first       map[string]string
	cachedNames []string
	err         error
}

// IsPreflight recognises a CORS preflight as the Fetch standard defines it. Anyone
// can send one, but what is sent is then an OPTIONS request, which the application
// takes for a preflight too. The header has canonical names.
func IsPreflight(method string, header http.Header) bool {
	return method == http.MethodOptions &&
		header.Get("Origin") != "" && header.Get("Access-Control-Request-Method") != ""
}

// method is in upper case; it has been already, but for odd clients.
func (r *Request) method() string { return strings.ToUpper(r.Method) }

// path is the normalised path; it is never empty.
func (r *Request) path() string {
	if r.cachedPath == "" {
		r.cachedPath = normalizePath(r.Path)
	}
	return r.cachedPath
}

// host is the name in lower case, without port and final dot, so that the
// spellings of one host are one.
func (r *Request) host() string {
	if r.cachedHost == "" {
		name := r.Host
		if host, _, err := net.SplitHostPort(name); err == nil {
			name = host
		}
		r.cachedHost = strings.ToLower(strings.TrimSuffix(name, "."))
	}
	return r.cachedHost
}

// clientIP is the canonical address: IPv4-mapped ones are IPv4, and zones,
// which only mean something on the machine that names them, are dropped.
func (r *Request) clientIP() netip.Addr {
	return r.ClientIP.Unmap().WithZone("")
}

// header returns the values of a canonical name.
func (r *Request) header(name string) []string {
	if name == "Host" && r.Host != "" {
		return []string{r.host()}
	}
	return r.Header[name]
}

// firstHeader is the first value of a canonical name, as net/http's
// Header.Get has it.
func (r *Request) firstHeader(name string) (value string, present bool) {
	if name == "Host" {
		return r.host(), r.Host != ""
	}
	all := r.Header[name]
	if len(all) == 0 {
		return "", false
	}
	return all[0], true
}

// query holds the first value of each query parameter.
func (r *Request) query() *values {
	if r.cachedQuery == nil {
		r.cachedQuery = parseQuery(r.RawQuery)
	}
	return r.cachedQuery
}

// cookies holds the first value of each cookie.
func (r *Request) cookies() *values {
	if r.cachedCookies == nil {
		r.cachedCookies = parseCookies(r.Header["Cookie"])
	}
	return r.cachedCookies
}

func parseQuery(raw string) *values {
	if len(raw) > MaxInput {
		return &values{err: errTooLong}
	}
	first := map[string]string{}
	for pair := range strings.SplitSeq(raw, "&") {
		if pair != "" {
			name, value, _ := strings.Cut(pair, "=")
			setFirst(first, unescapeQuery(name), unescapeQuery(value))
		}
	}
	return &values{first: first}
}

// unescapeQuery takes an invalid escape as it is: lenient servers do, and a
// parameter must not vanish because of a stray percent sign.
func unescapeQuery(s string) string {
	if unescaped, err := url.QueryUnescape(s); err == nil {
		return unescaped
	}
	return s
}

// parseCookies is lenient: it wants names and equals signs, and takes any
// value, with quotes around it removed.
func parseCookies(lines []string) *values {
	first := map[string]string{}
	total := 0
	for _, line := range lines {
		if total += len(line); total > MaxInput {
			return &values{err: errTooLong}
		}
		for pair := range strings.SplitSeq(line, ";") {
			if name, value, ok := strings.Cut(pair, "="); ok {
				setFirst(first, strings.TrimSpace(name), unquote(strings.TrimSpace(value)))
			}
		}
	}
	return &values{first: first}
}

func unquote(s string) string {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		return s[1 : len(s)-1]
	}
	return s
}

func setFirst(m map[string]string, name, value string) {
	if _, taken := m[name]; !taken {
		m[name] = value
	}
}
