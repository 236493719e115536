package match

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// normalizePath brings the spellings of one resource together, so that none of
// them slips past a limit or gets a counter of its own:
//
//   - Escapes are decoded, once. Those of the slash, the semicolon, the percent
//     sign, control characters and bytes that are not UTF-8 stay, in upper
//     case: decoded, they would change the structure or the meaning. A percent
//     sign that begins no escape becomes %25.
//   - A segment ends at its first semicolon (RFC 3986 section 3.3 parameters):
//     servlet containers route without them, and take "/..;/" for "/../".
//   - Empty segments, "." and ".." are resolved after decoding, and never climb
//     above the root.
//   - A final slash is dropped.
//
// Case is kept: paths are case-sensitive. A backslash is an ordinary
// character.
//
// The result starts with a slash, is valid UTF-8 without control characters,
// and normalising it again changes nothing.
func normalizePath(raw string) string {
	if isNormal(raw) {
		return raw
	}
	out := make([]byte, 0, len(raw)+1)
	for segment := range strings.SplitSeq(raw, "/") {
		out = appendSegment(out, segment)
	}
	if len(out) == 0 {
		return "/"
	}
	return string(out)
}

// isNormal recognises most paths that need no change, without allocating.
func isNormal(path string) bool {
	if path == "" || path[0] != '/' {
		return false
	}
	previous := byte(0)
	for _, c := range []byte(path) {
		if c == '%' || c == ';' || c >= utf8.RuneSelf || isControl(c) {
			return false
		}
		if previous == '/' && (c == '/' || c == '.') {
			return false
		}
		previous = c
	}
	return previous != '/' || path == "/"
}

// appendSegment adds a slash and the decoded segment, or resolves a dot
// segment.
func appendSegment(out []byte, segment string) []byte {
	segment, _, _ = strings.Cut(segment, ";")
	before := len(out)
	out = appendDecoded(append(out, '/'), segment)
	switch string(out[before:]) {
	case "/", "/.":
		return out[:before]
	case "/..":
		return out[:max(0, bytes.LastIndexByte(out[:before], '/'))]
	}
	return out
}

// appendDecoded adds the segment with its escapes decoded as far as
// normalizePath allows.
func appendDecoded(out []byte, segment string) []byte {
	start := len(out)
	for i := 0; i < len(segment); i++ {
		c := segment[i]
		if c == '%' && i+2 < len(segment) && isHex(segment[i+1]) && isHex(segment[i+2]) {
			c = unhex(segment[i+1])<<4 | unhex(segment[i+2])
			i += 2
		}
		if c == '%' || c == '/' || c == ';' || isControl(c) {
			out = appendEscape(out, c)
		} else {
			out = append(out, c)
		}
	}
	if utf8.Valid(out[start:]) {
		return out
	}
	return escapeInvalid(out[:start], string(out[start:]))
}

// escapeInvalid adds s with its bytes that are not UTF-8 escaped.
func escapeInvalid(out []byte, s string) []byte {
	for s != "" {
		r, size := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && size == 1 {
			out = appendEscape(out, s[0])
		} else {
			out = append(out, s[:size]...)
		}
		s = s[size:]
	}
	return out
}

func appendEscape(out []byte, c byte) []byte {
	const digits = "0123456789ABCDEF"
	return append(out, '%', digits[c>>4], digits[c&0xf])
}

func isControl(c byte) bool { return c < ' ' || c == 0x7f }

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func unhex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c&0xf + 9 // the low bits of a..f and A..F are 1..6
}
