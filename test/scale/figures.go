package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// figure is one number that was measured.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
	// AtMost is the target; nil without one.
	AtMost *float64 `json:"atMost,omitempty"`
}

func (f figure) holds() bool { return f.AtMost == nil || f.Value <= *f.AtMost }

// targets are what a run of 10,000 policies and 1,000 watchers is held to, by the
// figures' names. A smaller one has to hold them, too.
var targets = map[string]float64{
	"edit: enforced by all watchers, p50":          300,
	"edit: enforced by all watchers, p99":          1000,
	"one namespace: enforced by all watchers, p50": 300,
	"one namespace: enforced by all watchers, p99": 1000,
	"manager: resident at most":                    256,
	"start over unchanged policies: took":          10,
	"start over unchanged policies: API writes":    0,
	"start over unchanged policies: Redis writes":  0,
	"idle: API writes":                             0,
	"idle: Redis writes, without heartbeats":       0,
}

// figures are in the order in which they were measured.
type figures []figure

func (fs *figures) add(name string, value float64, unit string) {
	f := figure{Name: name, Value: value, Unit: unit}
	if bound, has := targets[name]; has {
		f.AtMost = &bound
	}
	*fs = append(*fs, f)
}

// complete is an error if a target is of nothing that was measured.
func (fs figures) complete() error {
	for name := range targets {
		if !slices.ContainsFunc(fs, func(f figure) bool { return f.Name == name }) {
			return fmt.Errorf("there is a target for %q, and no figure", name)
		}
	}
	return nil
}

func (fs figures) hold() bool {
	return !slices.ContainsFunc(fs, func(f figure) bool { return !f.holds() })
}

// writeJSON writes the figures with the conditions they were measured under.
func (fs figures) writeJSON(w io.Writer, conditions []string) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(map[string]any{"conditions": conditions, "figures": fs})
}

// writeTable writes a Markdown table.
func (fs figures) writeTable(w io.Writer, conditions []string) error {
	rows := [][]string{{"figure", "value", "target"}}
	for _, f := range fs {
		target := ""
		if f.AtMost != nil {
			target = "≤ " + number(*f.AtMost)
			if !f.holds() {
				target += " MISSED"
			}
		}
		rows = append(rows, []string{f.Name, strings.TrimSpace(number(f.Value) + " " + f.Unit), target})
	}
	var text strings.Builder
	text.WriteString(strings.Join(conditions, ", ") + "\n\n")
	width := func(column int) (most int) {
		for _, row := range rows {
			most = max(most, utf8.RuneCountInString(row[column]))
		}
		return most
	}
	a, b, c := width(0), width(1), width(2)
	for i, row := range rows {
		fmt.Fprintf(&text, "| %-*s | %*s | %-*s |\n", a, row[0], b, row[1], c, row[2])
		if i == 0 {
			fmt.Fprintf(&text, "| %s | %s: | %s |\n", strings.Repeat("-", a), strings.Repeat("-", b-1), strings.Repeat("-", c))
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// number has three digits or so, and no more than it needs.
func number(v float64) string {
	switch {
	case v == float64(int64(v)):
		return strconv.FormatInt(int64(v), 10)
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}
