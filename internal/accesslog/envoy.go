package accesslog

import (
	"errors"
	"strings"
)

// envoy reads Envoy's default format, and Istio's, which has more in the middle:
//
//	[2026-04-15T20:17:00.310Z] "POST /v1/orders HTTP/2" 204 - 154 0 226 100 "10.0.35.28" "curl/8" "cc21d9b0" "shop.example" "10.0.2.1:80"
//
// The last fields are X-Forwarded-For, User-Agent, X-Request-Id, the authority and
// the upstream. The peer's address is not logged, but Envoy has added it to
// X-Forwarded-For where it is told to.
type envoy struct{ trustedHops int }

var errNotEnvoy = errors.New("the line is not of the form: " +
	`[time] "request" … "X-Forwarded-For" "User-Agent" "X-Request-Id" "authority"`)

func (f envoy) parse(line string, e *Entry) error {
	at, rest, ok := strings.Cut(line, "] ")
	if !ok || !strings.HasPrefix(at, "[") {
		return errNotEnvoy
	}
	micros, err := isoTime(at[1:])
	if err != nil {
		return err
	}
	if err := e.setTime(micros); err != nil {
		return err
	}
	rest, err = e.takeRequestLine(rest, errNotEnvoy)
	if err != nil {
		return err
	}
	headers, ok := headersOf(rest)
	if !ok {
		return errNotEnvoy
	}
	forwarded, authority := headers[0], headers[3]
	e.addHeader("X-Forwarded-For", forwarded)
	e.addHeader("User-Agent", headers[1])
	e.addHeader("X-Request-Id", headers[2])
	e.addHeader("Host", authority)
	e.setClient("", forwarded, max(1, f.trustedHops))
	return nil
}

// headersOf are the first four quoted fields in a row.
func headersOf(line string) (fields [4]string, ok bool) {
	n := 0
	for line != "" {
		field, rest, quoted := cutQuoted(line)
		switch {
		case quoted:
			fields[n] = field
			if n++; n == len(fields) {
				return fields, true
			}
		case line[0] == '"': // without an end, as all that come
			return fields, false
		default:
			n = 0
			_, rest, _ = strings.Cut(line, " ")
		}
		line = rest
	}
	return fields, false
}
