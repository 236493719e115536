package accesslog

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

var errTime = errors.New("the time cannot be read")

// logTimeLength is that of "10/Oct/2000:13:55:36 -0700".
const logTimeLength = 26

const months = "JanFebMarAprMayJunJulAugSepOctNovDec"

// logTime reads the time as nginx and Apache write it, and returns µs since 1970.
func logTime(s string) (int64, error) {
	if len(s) != logTimeLength || s[2] != '/' || s[6] != '/' || s[11] != ':' || s[14] != ':' || s[17] != ':' || s[20] != ' ' {
		return 0, errTime
	}
	month := strings.Index(months, s[3:6])
	if month < 0 || month%3 != 0 || s[21] != '+' && s[21] != '-' {
		return 0, errTime
	}
	var n [7]int
	for i, part := range [...]struct{ at, length, most int }{
		{0, 2, 31}, {7, 4, 9999}, {12, 2, 23}, {15, 2, 59}, {18, 2, 60}, {22, 2, 23}, {24, 2, 59},
	} {
		if n[i] = digits(s[part.at : part.at+part.length]); n[i] < 0 || n[i] > part.most {
			return 0, errTime
		}
	}
	if n[0] == 0 {
		return 0, errTime
	}
	offset := int64(n[5]*60+n[6]) * 60
	if s[21] == '-' {
		offset = -offset
	}
	t := time.Date(n[1], time.Month(month/3+1), n[0], n[2], n[3], n[4], 0, time.UTC)
	return (t.Unix() - offset) * 1e6, nil
}

// digits reads a number of nothing but digits, or returns -1.
func digits(s string) int {
	n := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return -1
		}
		n = n*10 + int(s[i]-'0')
	}
	return n
}

// isoTime reads RFC 3339, and returns µs since 1970.
func isoTime(s string) (int64, error) {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return 0, errTime
	}
	return t.UnixMicro(), nil
}

// unixTime reads the seconds since 1970, or the milli-, micro- or nanoseconds:
// the number's size tells which for all times from 1973 on.
func unixTime(s string) (int64, error) {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(n) || n < 0 || n > 1e20 {
		return 0, errTime
	}
	micros := 1e6
	for limit := 1e11; n >= limit && micros > 1e-3; limit *= 1e3 {
		micros /= 1e3
	}
	return int64(math.Round(n * micros)), nil
}

// anyTime reads a time in any of the forms above.
func anyTime(s string) (int64, error) {
	switch {
	case strings.IndexByte(s, '/') >= 0:
		return logTime(s)
	case strings.IndexByte(s, ':') >= 0:
		return isoTime(s)
	default:
		return unixTime(s)
	}
}
