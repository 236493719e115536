package accesslog

import (
	"errors"
	"net/netip"
	"strings"
)

// clf reads the formats of nginx and Apache:
//
//	192.0.2.7 - frank [10/Oct/2000:13:55:36 -0700] "GET /a?b=c HTTP/1.0" 200 2326 "https://shop.example/" "curl/8.5" "203.0.113.9"
//
// The common format ends with the size; the combined one goes on with Referer and
// User-Agent. X-Forwarded-For may follow, as in nginx's own example, and what
// comes then is passed over.
type clf struct {
	combined    bool
	trustedHops int
}

var errNotCLF = errors.New(`the line is not of the form: client - user [day/month/year:time zone] "request" status size`)

func (f clf) parse(line string, e *Entry) error {
	client, rest, ok := strings.Cut(line, " ")
	if !ok || client == "" {
		return errNotCLF
	}
	if second, _, _ := strings.Cut(rest, " "); second != "-" && isAddresses(second) && !isAddresses(client) {
		client = second // Apache's vhost formats have the server's name first
	}
	at, rest, ok := cutLogTime(rest)
	if !ok {
		return errNotCLF
	}
	micros, err := logTime(at)
	if err != nil {
		return err
	}
	if err := e.setTime(micros); err != nil {
		return err
	}
	rest, err = e.takeRequestLine(rest, errNotCLF)
	if err != nil {
		return err
	}
	forwarded, err := f.readTail(rest, e)
	if err != nil {
		return err
	}
	e.setClient(client, forwarded, f.trustedHops)
	return nil
}

// cutLogTime finds the time in brackets. The user's name before it is any text.
func cutLogTime(line string) (at, rest string, ok bool) {
	const length = logTimeLength
	for {
		i := strings.IndexByte(line, '[')
		if i < 0 || len(line) < i+length+3 {
			return "", "", false
		}
		line = line[i+1:]
		if line[length] == ']' && line[length+1] == ' ' {
			return line[:length], line[length+2:], true
		}
	}
}

// readTail reads what follows the request: status, size and, of the combined
// format, headers.
func (f clf) readTail(line string, e *Entry) (forwarded string, err error) {
	status, rest, _ := strings.Cut(line, " ")
	if status != "-" && (len(status) != 3 || digits(status) < 0) {
		return "", errNotCLF
	}
	size, rest, _ := strings.Cut(rest, " ")
	if size != "-" && (size == "" || digits(size) < 0) {
		return "", errNotCLF
	}
	if !f.combined {
		return "", nil
	}
	referer, rest, hasReferer := cutQuoted(rest)
	agent, rest, hasAgent := cutQuoted(rest)
	if !hasReferer || !hasAgent {
		return "", errors.New(`the line does not go on with "Referer" "User-Agent" as the combined format does`)
	}
	e.addHeader("Referer", referer)
	e.addHeader("User-Agent", agent)
	if field, _, ok := cutQuoted(rest); ok && isAddresses(field) {
		e.addHeader("X-Forwarded-For", field)
		forwarded = field
	}
	return forwarded, nil
}

// isAddresses says whether a field can be an X-Forwarded-For: it begins with an
// address.
func isAddresses(field string) bool {
	first, _, _ := strings.Cut(field, ",")
	if first == "" || !strings.ContainsAny(first, ".:") {
		return false
	}
	_, err := netip.ParseAddr(first)
	return err == nil
}
