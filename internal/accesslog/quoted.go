package accesslog

import (
	"strconv"
	"strings"
)

// cutQuoted cuts a field in quotation marks off the front of a line, and the
// space behind it. A mark that is escaped, or that has no space behind it, is
// of the field: not all servers escape what clients send.
func cutQuoted(line string) (field, rest string, ok bool) {
	if line == "" || line[0] != '"' {
		return "", line, false
	}
	for at := 1; ; {
		i := strings.IndexByte(line[at:], '"')
		if i < 0 {
			return "", line, false
		}
		end := at + i
		at = end + 1
		switch {
		case isEscaped(line[1:end]):
		case at == len(line):
			return unescape(line[1:end]), "", true
		case line[at] == ' ':
			return unescape(line[1:end]), line[at+1:], true
		}
	}
}

// takeRequestLine sets the request from the field in quotation marks in front of a
// line. Without one, the line is not of the form, as the error says.
func (e *Entry) takeRequestLine(line string, notOfForm error) (rest string, err error) {
	request, rest, ok := cutQuoted(line)
	if !ok {
		return "", notOfForm
	}
	return rest, e.setRequestLine(request)
}

// isEscaped says whether what comes after s is escaped by its last backslash.
func isEscaped(s string) bool {
	return (len(s)-len(strings.TrimRight(s, `\`)))%2 == 1
}

// unescape undoes what nginx (\x22) and Apache (\", \\, \t, \x00) write. What is no
// escape stands for itself.
func unescape(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	out := make([]byte, 0, len(s))
	for len(s) > 0 {
		c, size := s[0], 1
		if c == '\\' && len(s) > 1 {
			c, size = unescapeOne(s)
		}
		out, s = append(out, c), s[size:]
	}
	return string(out)
}

// unescapeOne reads an escape of at least two bytes, and says how long it is.
func unescapeOne(s string) (c byte, size int) {
	const names, meanings = `"\nrtbvf`, "\"\\\n\r\t\b\v\f"
	if i := strings.IndexByte(names, s[1]); i >= 0 {
		return meanings[i], 2
	}
	if s[1] == 'x' && len(s) >= 4 {
		if n, err := strconv.ParseUint(s[2:4], 16, 8); err == nil {
			return byte(n), 4
		}
	}
	return '\\', 1
}
