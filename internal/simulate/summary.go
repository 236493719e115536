package simulate

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Summary counts decisions. It is an Observer.
type Summary struct {
	// Requests for units, and those of them that were admitted.
	Requests, Admitted int64
	Peeks, Refunds     int64
	// Latest is the latest time of the trace.
	Latest time.Duration

	limits []limitSummary
}

// LimitInfo is what there is to know of a limit.
type LimitInfo struct {
	// Name is unique among the limits.
	Name string
	// Shadow limits refuse nothing.
	Shadow bool
}

// limitSummary counts a limit's own answers to requests for units.
type limitSummary struct {
	LimitInfo
	allowed, refused int64
}

// NewSummary counts for limits, those of LimitDecision.Index.
func NewSummary(limits []LimitInfo) *Summary {
	s := &Summary{limits: make([]limitSummary, len(limits))}
	for i, l := range limits {
		s.limits[i].LimitInfo = l
	}
	return s
}

// Decided implements Observer.
func (s *Summary) Decided(r *Request, d *Decision) {
	s.Latest = max(s.Latest, r.Since)
	switch r.Op {
	case Peek:
		s.Peeks++
		return
	case Refund:
		s.Refunds++
		return
	}
	s.Requests++
	if d.Allowed {
		s.Admitted++
	}
	for _, l := range d.Limits {
		if l.Allowed {
			s.limits[l.Index].allowed++
		} else {
			s.limits[l.Index].refused++
		}
	}
}

// Write prints the summary for people.
func (s *Summary) Write(out io.Writer) error {
	fmt.Fprintf(out, "%d requests: %d admitted, %d refused; %d peeks, %d refunds; %v simulated\n",
		s.Requests, s.Admitted, s.Requests-s.Admitted, s.Peeks, s.Refunds, s.Latest)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "LIMIT\tALLOWED\tREFUSED")
	for _, l := range s.limits {
		note := ""
		if l.Shadow {
			note = "  (shadow: refusals are not carried out)"
		}
		fmt.Fprintf(table, "%s\t%d\t%d%s\n", l.Name, l.allowed, l.refused, note)
	}
	return table.Flush()
}
