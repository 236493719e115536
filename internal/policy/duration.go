package policy

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Duration is a length of time, written as GEP-2257 has it: up to four numbers
// with a unit of h, m, s or ms, such as "1m30s" or "500ms".
type Duration time.Duration

// durationPattern is GEP-2257's.
var durationPattern = regexp.MustCompile(`^([0-9]{1,5}(h|m|s|ms)){1,4}$`)

// ParseDuration reads a GEP-2257 duration.
func ParseDuration(s string) (Duration, error) {
	if !durationPattern.MatchString(s) {
		return 0, fmt.Errorf("%q is not a duration: write up to four numbers with a unit of h, m, s or ms, such as 1m30s or 500ms (a day is 24h)", shorten(s))
	}
	d, err := time.ParseDuration(s)
	return Duration(d), err
}

// String is the shortest GEP-2257 form.
func (d Duration) String() string {
	if d == 0 {
		return "0s"
	}
	rest := time.Duration(d)
	var b strings.Builder
	for _, u := range []struct {
		length time.Duration
		name   string
	}{{time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if n := rest / u.length; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, u.name)
			rest %= u.length
		}
	}
	return b.String()
}

// MarshalJSON writes the GEP-2257 form.
func (d Duration) MarshalJSON() ([]byte, error) {
	return json.Marshal(d.String())
}

// UnmarshalJSON reads the GEP-2257 form. As everywhere in JSON, null is no value.
func (d *Duration) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("a duration is a string such as \"1m\", not %.40s", data)
	}
	parsed, err := ParseDuration(s)
	*d = parsed
	return err
}
