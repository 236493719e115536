package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// column shows one metric.
type column struct {
	title  string
	metric string
	format func(float64) string
}

// row is where the values of a line come from.
type row struct {
	caseName, contestant string
	baseline             string // contestant whose rate is 1.00 ×; "": none
}

var loadColumns = []column{
	{"decisions/s", throughput, thousands},
	{"p50 µs", p50, microseconds},
	{"p99 µs", p99, microseconds},
	{"allocs", allocs, two},
	{"Redis calls", calls, small},
	{"CPU client", clientCPU, two},
	{"CPU Redis", redisCPU, two},
	{"CPU µs", cpu, two},
	{"errors", failures, whole},
	{"admitted", share, small},
	{"others", otherCPU, two},
}

var sharedColumns = []column{
	{"decisions", asked, whole},
	{"admitted", admitted, whole},
	{"contract", contract, whole},
	{"over", over, whole},
	{"admitted ÷ contract", fulfilled, small},
	{"Redis calls ÷ admitted", perUnit, small},
	{"errors", failures, whole},
}

var proxyColumns = []column{
	{"requests/s", throughput, thousands},
	{"p50 µs", p50, microseconds},
	{"p99 µs", p99, microseconds},
	{"CPU proxy", proxyCPU, two},
	{"CPU Redis", redisCPU, two},
	{"CPU µs", cpu, two},
	{"errors", failures, whole},
	{"others", otherCPU, two},
}

var proxyPacedColumns = append([]column{
	{"p50 added", p50Added, microseconds},
	{"p99 added", p99Added, microseconds},
}, proxyColumns...)

var proxyMemoryColumns = []column{
	{"MiB at rest", memoryAtRest, two},
	{"MiB at most", memoryAtPeak, two},
	{"program MB", programSize, two},
	{"requests/s", throughput, thousands},
	{"errors", failures, whole},
}

var bytesColumns = []column{
	{"Redis keys", redisKeys, two},
	{"MEMORY USAGE, 1 request", bytesOfOne, whole},
	{"MEMORY USAGE, 10 requests", bytesOfMany, whole},
	{"used_memory", bytesUsed, whole},
}

func whole(v float64) string        { return strconv.FormatFloat(v, 'f', 0, 64) }
func two(v float64) string          { return strconv.FormatFloat(v, 'f', 2, 64) }
func microseconds(v float64) string { return strconv.FormatFloat(v/1000, 'f', 1, 64) }

// small shows what may be far below 1.
func small(v float64) string {
	if v == 0 || v >= 0.1 {
		return strconv.FormatFloat(v, 'f', 3, 64)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

func thousands(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'f', 2, 64) + " M"
	case v >= 1e3:
		return strconv.FormatFloat(v/1e3, 'f', 1, 64) + " k"
	default:
		return whole(v)
	}
}

// writeTable prints the medians of the rows as a Markdown table. Rows without
// results are left out; without any, nothing is printed.
func writeTable(w io.Writer, r results, rows []row, columns []column) {
	header := []string{"case", "contestant"}
	for _, c := range columns {
		header = append(header, c.title)
		if c.metric == throughput {
			header = append(header, "×")
		}
	}
	lines := [][]string{header}
	for _, row := range rows {
		if len(r[row.caseName][row.contestant]) > 0 {
			lines = append(lines, row.cells(r, columns))
		}
	}
	if len(lines) > 1 {
		writeLines(w, lines)
	}
}

func (r row) cells(results results, columns []column) []string {
	cells := []string{r.caseName, r.contestant}
	for _, c := range columns {
		v, ok := results.median(r.caseName, r.contestant, c.metric)
		cells = append(cells, cell(v, ok, c.format))
		if c.metric == throughput {
			base, hasBase := results.median(r.caseName, r.baseline, throughput)
			cells = append(cells, cell(v/base, ok && hasBase, two))
		}
	}
	return cells
}

func cell(v float64, ok bool, format func(float64) string) string {
	if !ok {
		return "–"
	}
	return format(v)
}

// writeLines prints the first line as the header. Texts are on the left, numbers,
// which begin with the third column, on the right.
func writeLines(w io.Writer, lines [][]string) {
	const texts = 2
	widths := make([]int, len(lines[0]))
	for _, line := range lines {
		for i, text := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	rule := make([]string, len(widths))
	for i, width := range widths {
		rule[i] = strings.Repeat("-", width)
		if i >= texts {
			rule[i] = strings.Repeat("-", width-1) + ":"
		}
	}
	for i, line := range lines {
		writeLine(w, line, widths, texts)
		if i == 0 {
			writeLine(w, rule, widths, texts)
		}
	}
	_, _ = fmt.Fprintln(w)
}

func writeLine(w io.Writer, cells []string, widths []int, texts int) {
	for i, text := range cells {
		space := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
		if i < texts {
			text += space
		} else {
			text = space + text
		}
		_, _ = fmt.Fprintf(w, "| %s ", text)
	}
	_, _ = fmt.Fprintln(w, "|")
}
