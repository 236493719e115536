package pictures

import (
	_ "embed"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/template"
	"time"
)

//go:embed chart.svg.tmpl
var chartText string

var chartTemplate = template.Must(template.New("chart").Parse(chartText))

// chart is a picture of two panels over the same time: bars of what came in each part
// of it, and below a line of what that amounts to, with the bounds that hold it.
type chart struct {
	// Title and Subtitle say what is seen; Description is for who cannot see.
	Title, Subtitle, Description string
	Bars                         []series
	Line                         series
	Bounds                       []bound
	// columns are how many values each series has, and width the time of one.
	columns int
	width   time.Duration
}

// series are values over time.
type series struct {
	Name   string
	Class  string // of the picture's styles
	values []float64
}

// bound is a line across the lower panel.
type bound struct {
	Name  string
	value float64
}

// The places of the panels, in the coordinates of the picture. The line's name and the
// bounds' stand to the right.
const (
	left, right           = 56.0, 650.0
	barsTop, barsBottom   = 84.0, 194.0
	linesTop, linesBottom = 226.0, 336.0
	legendStep            = 96.0
	room                  = 1.12 // above what is highest
)

// mark is a text at a place.
type mark struct {
	X, Y float64
	Text string
}

// path is all bars of a series.
type path struct {
	Class, D string
}

// drawing is a chart in the coordinates of the picture.
type drawing struct {
	*chart
	Paths          []path
	LinePath, Area string
	Legend         []legendEntry
	Times          []mark
	Rulers         []mark // of bounds
	PeakY, LineY   mark   // the values at the top of each panel
}

type legendEntry struct {
	X           float64
	Class, Name string
}

// write writes the chart as an SVG that needs nothing else. It has its own ground, in
// light and in dark, since who shows it may have either.
func (c *chart) write(out io.Writer) error {
	return chartTemplate.Execute(out, c.draw())
}

func (c *chart) draw() *drawing {
	d := &drawing{chart: c}
	for i, s := range c.Bars {
		d.Legend = append(d.Legend, legendEntry{left + float64(i)*legendStep, s.Class, s.Name})
	}
	c.drawBars(d)
	c.drawLine(d)
	c.drawTimes(d)
	return d
}

// drawBars puts the bars of a column on each other.
func (c *chart) drawBars(d *drawing) {
	tops := make([]float64, c.columns)
	for _, s := range c.Bars {
		for i, v := range s.values {
			tops[i] += v
		}
	}
	peak := slices.Max(tops)
	scale := (barsBottom - barsTop) / (peak * room)
	d.PeakY = mark{left - 8, barsBottom - peak*scale + 4, fmt.Sprint(peak)}

	step := (right - left) / float64(c.columns)
	feet := make([]float64, c.columns)
	for _, s := range c.Bars {
		var p strings.Builder
		for i, v := range s.values {
			if v > 0 {
				fmt.Fprintf(&p, "M%.1f %.1fh%.1fv-%.1fh-%.1fz", left+float64(i)*step, barsBottom-feet[i]*scale, step*0.8, v*scale, step*0.8)
			}
			feet[i] += v
		}
		d.Paths = append(d.Paths, path{s.Class, p.String()})
	}
}

func (c *chart) drawLine(d *drawing) {
	peak := slices.Max(c.Line.values)
	for _, b := range c.Bounds {
		peak = max(peak, b.value)
	}
	scale := (linesBottom - linesTop) / (peak * room)
	y := func(v float64) float64 { return linesBottom - v*scale }
	for _, b := range c.Bounds {
		d.Rulers = append(d.Rulers, mark{right, y(b.value), fmt.Sprintf("%s: %v", b.Name, b.value)})
	}
	top := slices.Max(c.Line.values)
	d.LineY = mark{left - 8, y(top) + 4, fmt.Sprint(top)}

	step := (right - left) / float64(c.columns)
	var p strings.Builder
	fmt.Fprintf(&p, "M%.1f %.1f", left, linesBottom)
	for i, v := range c.Line.values {
		fmt.Fprintf(&p, "L%.1f %.1f", left+float64(i+1)*step, y(v))
	}
	d.LinePath = p.String()
	d.Area = fmt.Sprintf("%sV%.1fz", d.LinePath, linesBottom)
}

// drawTimes marks each half minute.
func (c *chart) drawTimes(d *drawing) {
	const every = 30 * time.Second
	all := time.Duration(c.columns) * c.width
	for at := time.Duration(0); at <= all; at += every {
		x := left + (right-left)*float64(at)/float64(all)
		d.Times = append(d.Times, mark{x, linesBottom + 16, fmt.Sprintf("%d:%02d", at/time.Minute, at%time.Minute/time.Second)})
	}
}
