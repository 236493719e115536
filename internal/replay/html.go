package replay

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
)

// htmlColumns is into how many parts the charts of a page divide the time at most.
const htmlColumns = 160

//go:embed report.html.tmpl
var htmlText string

// WriteHTML writes the report as a page that needs nothing else. What was logged is
// escaped, and the page allows no script.
func (r *Report) WriteHTML(out io.Writer) error {
	f := r.time.frame(htmlColumns)
	page, err := template.New("report").Funcs(template.FuncMap{
		"chart":    func(c Counts) drawing { return draw(c.series.in(f), f) },
		"clock":    clock,
		"duration": duration,
	}).Parse(htmlText)
	if err != nil {
		return err
	}
	return page.Execute(out, r)
}

// drawing is a chart in the coordinates of the page's template.
type drawing struct {
	Peak              int64
	Begin, End        string
	Admitted, Refused string // outlines of bars
	Columns           []drawnColumn
}

type drawnColumn struct{ X, Width, Title string }

// The part of a drawing that has bars.
const (
	left, right = 60.0, 720.0
	top, bottom = 10.0, 120.0
)

func draw(buckets []bucket, f frame) drawing {
	d := drawing{Begin: axisTime(f.start, f.width), End: axisTime(f.start+f.width*int64(f.columns), f.width)}
	for _, b := range buckets {
		d.Peak = max(d.Peak, b.admitted+b.refused)
	}
	scale := (bottom - top) / float64(max(1, d.Peak))
	width := (right - left) / float64(len(buckets))
	var admitted, refused strings.Builder
	for i, b := range buckets {
		if b == (bucket{}) {
			continue
		}
		x, high := left+float64(i)*width, float64(b.admitted)*scale
		writeBar(&admitted, x, bottom, width, high)
		writeBar(&refused, x, bottom-high, width, float64(b.refused)*scale)
		d.Columns = append(d.Columns, drawnColumn{
			X: fmt.Sprintf("%.2f", x), Width: fmt.Sprintf("%.2f", width),
			Title: fmt.Sprintf("%s: %d admitted, %d refused", axisTime(f.start+int64(i)*f.width, f.width), b.admitted, b.refused),
		})
	}
	d.Admitted, d.Refused = admitted.String(), refused.String()
	return d
}

// writeBar adds a bar to a path, with a little room to the next one.
func writeBar(path *strings.Builder, x, y, width, high float64) {
	if high > 0 {
		fmt.Fprintf(path, "M%.2f %.2fh%.2fv-%.2fh-%.2fz", x, y, width*0.9, high, width*0.9)
	}
}
