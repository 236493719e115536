package accesslog

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/netip"
	"strings"

	"github.com/tallyman-dev/tallyman/internal/match"
)

// Entry is one request of a log.
type Entry struct {
	// Line is its number in the log, from 1.
	Line int64
	// Micros is the time in µs since 1970, of the years 1990 to 2100.
	Micros int64
	// Request is what the log says of the request. What it does not say is
	// missing.
	Request match.Request
	// ClientName is set where the log names the client by a text that is no
	// address, such as a host's name; Request.ClientIP then stands for it, in
	// fd00::/8 and with a /64 of its own.
	ClientName string

	values []string // of Request.Header
}

// reset makes an entry a blank one, with its memory kept.
func (e *Entry) reset() {
	header := e.Request.Header
	if header == nil {
		header = http.Header{}
	}
	clear(header)
	*e = Entry{Request: match.Request{Header: header}, values: e.values[:0]}
}

// absent is how logs say that there is nothing to say.
func absent(field string) bool { return field == "" || field == "-" }

// addHeader adds a value of a header with a canonical name.
func (e *Entry) addHeader(name, value string) {
	if absent(value) {
		return
	}
	switch {
	case name == "Host":
		e.Request.Host = value
	case len(e.Request.Header[name]) > 0:
		e.Request.Header[name] = append(e.Request.Header[name], value)
	default:
		e.values = append(e.values, value)
		last := len(e.values)
		e.Request.Header[name] = e.values[last-1 : last : last]
	}
}

// The bounds of times, in µs since 1970. A counter's time is exact up to far
// beyond, while a log from before is one of a clock that was not set.
const (
	earliest = 631_152_000_000_000   // 1990
	latest   = 4_102_444_800_000_000 // 2100
)

func (e *Entry) setTime(micros int64) error {
	if micros < earliest || micros >= latest {
		return errors.New("the time is not in the years 1990 to 2100")
	}
	e.Micros = micros
	return nil
}

// maxMethod bounds what is taken for a method, in bytes.
const maxMethod = 32

func (e *Entry) setMethod(method string) error {
	if method == "" || len(method) > maxMethod {
		return errNoRequest
	}
	for i := range len(method) {
		c := method[i] | 0x20 // in lower case
		if isLetter := c >= 'a' && c <= 'z'; !isLetter && (i == 0 || method[i] != '-') {
			return errNoRequest
		}
	}
	e.Request.Method = method
	return nil
}

var errNoRequest = errors.New("there is no HTTP request on the line")

// setRequestLine takes the first line of a request: "GET /path HTTP/1.1", or
// without the protocol as in HTTP/0.9.
func (e *Entry) setRequestLine(line string) error {
	method, target, _ := strings.Cut(line, " ")
	if err := e.setMethod(method); err != nil {
		return err
	}
	if i := strings.LastIndexByte(target, ' '); i >= 0 && strings.HasPrefix(target[i+1:], "HTTP") {
		target = target[:i]
	}
	return e.setTarget(target)
}

// setTarget takes a path with or without a query, a URL, or what else stands in
// a request's first line. The method has been set.
func (e *Entry) setTarget(target string) error {
	if e.Request.Method == http.MethodConnect && !strings.HasPrefix(target, "/") {
		e.Request.Host, target = target, "/"
	}
	if !strings.HasPrefix(target, "/") {
		if _, rest, ok := strings.Cut(target, "://"); ok {
			i := strings.IndexAny(rest, "/?#")
			if i < 0 {
				i = len(rest)
			}
			e.Request.Host, target = rest[:i], rest[i:]
		}
	}
	path, query := match.SplitTarget(target)
	if path == "" && e.Request.Host != "" {
		path = "/"
	}
	if !strings.HasPrefix(path, "/") && path != "*" {
		return errors.New("the request's path does not begin with a slash")
	}
	e.Request.Path, e.Request.RawQuery = path, query
	return nil
}

// setClient tells the client from the peer's address and X-Forwarded-For, as the
// sidecar does behind so many trusted hops.
func (e *Entry) setClient(peer, forwarded string, trustedHops int) {
	if absent(peer) {
		peer = ""
	}
	hops := 0
	if !absent(forwarded) {
		hops = trustedHops
	}
	e.Request.ClientIP = match.ClientIP(peer, []string{forwarded}, hops)
	if !e.Request.ClientIP.IsValid() && peer != "" {
		e.ClientName, e.Request.ClientIP = peer, standIn(peer)
	}
}

// standIn is an address for a client that is known by name only: of fd00::/8,
// with a hash of the name in the rest of its first 64 bits.
func standIn(name string) netip.Addr {
	h := fnv.New64a()
	_, _ = h.Write([]byte(strings.ToLower(name))) // a hash takes all
	var addr [16]byte
	h.Sum(addr[:0])
	addr[0] = 0xfd
	return netip.AddrFrom16(addr)
}

// quote shows a part of a line in a message.
func quote(s string) string {
	const limit = 80
	if len(s) > limit {
		return fmt.Sprintf("%q…", strings.ToValidUTF8(s[:limit], ""))
	}
	return fmt.Sprintf("%q", s)
}
