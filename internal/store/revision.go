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
	// Number counts the publishes of the epoch, from 1.
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

// ParseRevision reads the form of String.
func ParseRevision(text string) (Revision, error) {
	epoch, number, found := strings.Cut(text, "-")
	e, errEpoch := strconv.ParseUint(epoch, 10, 53)
	n, errNumber := strconv.ParseUint(number, 10, 53)
	if !found || errEpoch != nil || errNumber != nil {
		return Revision{}, fmt.Errorf("%.40q is not a revision", text)
	}
	return Revision{Epoch: int64(e), Number: int64(n)}, nil
}
