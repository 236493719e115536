package replay

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// chartRows is the height of a chart's bars, in lines; three more are around them.
const chartRows = 8

// writeChart draws what was admitted and refused over time.
func (r *Report) writeChart(w io.Writer, result *Result, columns int) {
	const margin = 10
	f := r.time.frame(max(10, columns-margin))
	buckets := result.series.in(f)
	peak := int64(0)
	for _, b := range buckets {
		peak = max(peak, b.admitted+b.refused)
	}
	fmt.Fprintf(w, "\n%s: # admitted, x refused, each column is %s\n", printable(result.Policies), duration(f.width))
	bars := make([]string, len(buckets))
	for i, b := range buckets {
		bars[i] = bar(b, peak)
	}
	for row := chartRows - 1; row >= 0; row-- {
		label := ""
		if row == chartRows-1 {
			label = fmt.Sprint(peak)
		}
		line := make([]byte, len(bars))
		for i, bar := range bars {
			line[i] = bar[row]
		}
		fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("%8s |%s", label, line), " "))
	}
	fmt.Fprintf(w, "%8s +%s\n", "0", strings.Repeat("-", len(bars)))
	begin, end := axisTime(f.start, f.width), axisTime(f.start+f.width*int64(f.columns), f.width)
	fmt.Fprintf(w, "%8s  %s%s\n", "", begin, fmt.Sprintf("%*s", max(len(end)+2, len(bars)-len(begin)), end))
}

// bar is a column of a chart from below. Whatever there is any of can be seen.
func bar(b bucket, peak int64) string {
	admitted, refused := height(b.admitted, peak), height(b.refused, peak)
	for admitted+refused > chartRows {
		if admitted > refused {
			admitted--
		} else {
			refused--
		}
	}
	return strings.Repeat("#", admitted) + strings.Repeat("x", refused) + strings.Repeat(" ", chartRows-admitted-refused)
}

// height is that of n requests where peak is all of it.
func height(n, peak int64) int {
	if n == 0 {
		return 0
	}
	return max(1, int((n*chartRows+peak/2)/peak))
}

func axisTime(second, width int64) string {
	layout := "2006-01-02 15:04Z"
	if width < 60 {
		layout = "2006-01-02 15:04:05Z"
	}
	return time.Unix(second, 0).UTC().Format(layout)
}
