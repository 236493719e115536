package view

import (
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// cell is a text of a table and its color.
type cell struct {
	text  string
	color color
}

func text(s string) cell { return cell{text: s} }

// texts are cells without color.
func texts(all ...string) []cell {
	row := make([]cell, len(all))
	for i, s := range all {
		row[i].text = s
	}
	return row
}

// table has columns that are as wide as their widest cell. What is in its cells is
// written without what a terminal would obey, whosever it is.
type table struct {
	head []string
	rows [][]cell
}

func (t *table) add(row ...cell) { t.rows = append(t.rows, row) }

// dropUnknown is the table without columns in which nothing but dashes stands.
func (t *table) dropUnknown() *table {
	out := &table{rows: make([][]cell, len(t.rows))}
	for i, head := range t.head {
		if !slices.ContainsFunc(t.rows, func(row []cell) bool { return row[i].text != "-" }) {
			continue
		}
		out.head = append(out.head, head)
		for j, row := range t.rows {
			out.rows[j] = append(out.rows[j], row[i])
		}
	}
	return out
}

func (t *table) write(w io.Writer, s Style) error {
	rows := append([][]cell{texts(t.head...)}, t.rows...)
	widths := make([]int, len(t.head))
	for _, row := range rows {
		for i := range row {
			c := &row[i]
			c.text = whole(c.text)
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, c := range row {
			b.WriteString(s.paint(c.color, c.text))
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text)+2))
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}
