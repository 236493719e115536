package store

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Revision numbers what is published for a namespace. It increases with every
// publish, also across the loss of the store: then a later epoch begins.
type Revision struct {
	// Epoch is the store's time, in µs, of the first publish into a store that
	// knew no revision.
	Epoch int64
	// Number increases with each publish of the epoch, from 1. It is at least the
	// milliseconds since Epoch, so that one that was lost in a failover is not
	// given to other definitions.
	Number int64
}

// IsZero says whether there is no revision: the store was lost, or nothing was
// ever published.
func (r Revision) IsZero() bool { return r == Revision{} }

// Compare is negative, zero or positive when r is before, at or after other.
func (r Revision) Compare(other Revision) int {
	return cmp.Or(cmp.Compare(r.Epoch, other.Epoch), cmp.Compare(r.Number, other.Number))
}

// String is "epoch-number".
func (r Revision) String() string {
	return strconv.FormatInt(r.Epoch, 10) + "-" + strconv.FormatInt(r.Number, 10)
}

// MarshalText writes the form of String.
func (r Revision) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads the form of String.
func (r *Revision) UnmarshalText(text []byte) error {
	parsed, err := ParseRevision(string(text))
	*r = parsed
	return err
}

// maxNumber is 2^53-1, the largest integer that Lua carries exactly.
const maxNumber = 1<<53 - 1

// ParseRevision reads the form of String. Epoch and number are 1..2^53-1, or
// both 0.
func ParseRevision(text string) (Revision, error) {
	epoch, number, _ := strings.Cut(text, "-")
	r := Revision{Epoch: parseNumber(epoch), Number: parseNumber(number)}
	if (r.Epoch < 1 || r.Number < 1) && text != (Revision{}).String() {
		return Revision{}, fmt.Errorf("%.40q is not a revision", text)
	}
	return r, nil
}

// parseNumber is 0 for what is not a number of up to 16 digits, 1..maxNumber.
func parseNumber(text string) int64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || len(text) > 16 || n > maxNumber {
		return 0
	}
	return int64(n)
}
