package view

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// TopOptions say how rates are shown.
type TopOptions struct {
	Style
	// ByKey shows a row for each key, else for each limit.
	ByKey bool
	// Namespaces shows the namespace of each row.
	Namespaces bool
	// Rows is the most rows that are shown.
	Rows int
	// Revealed says that keys are shown as they are, and not as hashes.
	Revealed bool
}

// topRow is a line of the table.
type topRow struct {
	limit *LimitRate
	key   string
	Rate
}

// WriteText shows rates: the most refused first.
func (r *Rates) WriteText(w io.Writer, o TopOptions) error {
	var b strings.Builder
	rows := r.rows(o.ByKey)
	fmt.Fprintf(&b, "%s  %s answered", r.At.Format(time.TimeOnly), Count(r.Pods, "sidecar"))
	if !o.Revealed && slices.ContainsFunc(rows, topRow.hashed) {
		b.WriteString("; keys with # are hashes: --reveal shows their values")
	}
	b.WriteByte('\n')
	r.writeUnanswered(&b, o.Style)
	t := table{head: []string{"POLICY", "LIMIT", "REFUSED/S", "ADMITTED/S"}}
	if o.ByKey {
		t.head = slices.Insert(t.head, 2, "KEY")
	}
	if o.Namespaces {
		t.head = slices.Insert(t.head, 0, "NAMESPACE")
	}
	for _, row := range rows[:min(len(rows), o.Rows)] {
		t.add(row.cells(o)...)
	}
	b.WriteByte('\n')
	_ = t.write(&b, o.Style) // it never fails
	if more := len(rows) - o.Rows; more > 0 {
		fmt.Fprintf(&b, "and %d more\n", more)
	}
	if len(rows) == 0 {
		b.WriteString("(no requests)\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// maxUnanswered bounds the pods that are named.
const maxUnanswered = 5

func (r *Rates) writeUnanswered(b *strings.Builder, s Style) {
	for _, u := range r.Unanswered[:min(len(r.Unanswered), maxUnanswered)] {
		fmt.Fprintf(b, "%s %s: %s\n", s.paint(yellow, "no answer:"), cmp.Or(u.Pod, "the sidecar"), message(u.Error))
	}
	if more := len(r.Unanswered) - maxUnanswered; more > 0 {
		fmt.Fprintf(b, "%s %d more\n", s.paint(yellow, "no answer:"), more)
	}
}

// rows leaves out what had no request.
func (r *Rates) rows(byKey bool) (rows []topRow) {
	for i := range r.Limits {
		l := &r.Limits[i]
		if !byKey {
			rows = append(rows, topRow{limit: l, Rate: l.Rate})
			continue
		}
		for _, k := range l.Keys {
			rows = append(rows, topRow{limit: l, key: k.Key, Rate: k.Rate})
		}
		if len(l.Keys) == 0 {
			rows = append(rows, topRow{limit: l, key: "(all)", Rate: l.Rate})
		}
	}
	rows = slices.DeleteFunc(rows, func(r topRow) bool { return r.Rate == Rate{} })
	slices.SortStableFunc(rows, func(a, b topRow) int { return compareRates(a.Rate, b.Rate) })
	return rows
}

func (r topRow) hashed() bool { return strings.Contains(r.key, "#") }

func (r *topRow) cells(o TopOptions) []cell {
	limit := r.limit.Limit
	if r.limit.Shadow {
		limit += " (shadow)"
	}
	row := []cell{text(r.limit.Policy), text(limit)}
	if o.ByKey {
		row = append(row, text(cmp.Or(clean(r.key), `""`)))
	}
	if o.Namespaces {
		row = slices.Insert(row, 0, text(r.limit.Namespace))
	}
	refused := text(perSecond(r.Refused))
	if r.Refused > 0 {
		refused.color = red
	}
	return append(row, refused, text(perSecond(r.Admitted)))
}

func perSecond(rate float64) string { return strconv.FormatFloat(rate, 'f', 1, 64) }
