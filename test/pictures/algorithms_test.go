package pictures

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/internal/golden"
	"github.com/tallyman-dev/tallyman/internal/limiter"
	"github.com/tallyman-dev/tallyman/internal/policyfile"
	"github.com/tallyman-dev/tallyman/internal/simulate"
)

// algorithm is a picture of docs/algorithms.
type algorithm struct {
	page, trace  string
	title, about string
	bounds       []bound
	line         string
	// amounts are what the line shows, from what was admitted.
	amounts func(*recorder) []float64
}

var algorithms = []algorithm{
	{
		page: "fixed-window", trace: "rush",
		title: "FixedWindow: 60 requests a minute", about: "A rush around the end of a minute gets the limit of both minutes.",
		bounds: []bound{{"limit", 60}, {"twice the limit", 120}},
		line:   "admitted within the last minute", amounts: (*recorder).lastMinute,
	},
	{
		page: "sliding-window", trace: "rush",
		title: "SlidingWindow: 60 requests a minute", about: "The minute before weighs in, as if its requests had come evenly.",
		bounds: []bound{{"limit", 60}},
		line:   "admitted within the last minute", amounts: (*recorder).lastMinute,
	},
	{
		page: "sliding-log", trace: "rush",
		title: "SlidingLog: 60 requests a minute", about: "Never more than the limit in any minute, wherever it begins.",
		bounds: []bound{{"limit", 60}},
		line:   "admitted within the last minute", amounts: (*recorder).lastMinute,
	},
	{
		page: "token-bucket", trace: "rush",
		title: "TokenBucket: 60 requests a minute, 20 at once", about: "A rush gets the burst and then the rate: one request a second.",
		bounds: []bound{{"requests", 60}, {"with the burst", 80}},
		line:   "admitted within the last minute", amounts: (*recorder).lastMinute,
	},
	{
		page: "concurrency", trace: "slow-app",
		title: "Concurrency: 20 requests in progress", about: "From 1:00 to 2:00 the app takes ten seconds for a request instead of two.",
		bounds: []bound{{"limit", 20}},
		line:   "in progress", amounts: func(r *recorder) []float64 { return r.inProgress },
	},
}

func TestPicturesOfAlgorithms(t *testing.T) {
	for _, a := range algorithms {
		t.Run(a.page, func(t *testing.T) {
			compare(t, a.page, a.draw(t))
		})
	}
}

// compare compares a picture of docs/images with one that was drawn.
func compare(t *testing.T, page string, c *chart) {
	t.Helper()
	var picture bytes.Buffer
	if err := c.write(&picture); err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "../../docs/images/"+page+".svg", picture.String())
}

func (a *algorithm) draw(t *testing.T) *chart {
	var policies simulate.Policies
	if err := policyfile.Read("../../docs/algorithms/"+a.page+".yaml", "shop", policies.Add); err != nil {
		t.Fatal(err)
	}
	trace, err := os.Open("../../docs/algorithms/" + a.trace + ".jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer trace.Close()
	clock := simulate.NewClock(time.Date(2024, time.January, 1, 0, 0, 0, 0, time.UTC))
	engine := simulate.NewEngine(&policies, clock, limiter.NewSimulatedMemory(clock.Now), "pictures")
	seen := &recorder{}
	if err := simulate.Run(t.Context(), simulate.NewTrace(trace.Name(), trace), engine, io.Discard, seen); err != nil {
		t.Fatal(err)
	}
	seen.last()
	return &chart{
		Title: a.title, Subtitle: fmt.Sprintf("%s %d requests, %d refused.", a.about, seen.requests, seen.requests-len(seen.at)),
		Description: "Above, requests admitted and refused in each two seconds; below, " + a.line + ", with " + names(a.bounds) + ".",
		Bars:        []series{{"admitted", "admitted", seen.admitted}, {"refused", "refused", seen.refused}},
		Line:        series{Name: a.line, values: a.amounts(seen)},
		Bounds:      a.bounds, columns: len(seen.admitted), width: columnWidth,
	}
}

func names(bounds []bound) string {
	var all []string
	for _, b := range bounds {
		all = append(all, fmt.Sprintf("%s, %v", b.Name, b.value))
	}
	return strings.Join(all, ", and ")
}

// columnWidth is the time of a column.
const columnWidth = 2 * time.Second

// recorder counts what is decided in columns.
type recorder struct {
	admitted, refused []float64
	inProgress        []float64 // at the end of each column
	requests          int
	at                []time.Duration // of admitted requests
	ongoing           float64
}

// Decided implements simulate.Observer.
func (r *recorder) Decided(q *simulate.Request, d *simulate.Decision) {
	for int(q.Since/columnWidth) >= len(r.admitted) {
		r.next()
	}
	column := len(r.admitted) - 1
	switch {
	case q.Op == simulate.Refund:
		r.ongoing--
	case d.Allowed:
		r.requests++
		r.at = append(r.at, q.Since)
		r.admitted[column]++
		r.ongoing++
	default:
		r.requests++
		r.refused[column]++
	}
}

// next begins a column.
func (r *recorder) next() {
	if len(r.admitted) > 0 {
		r.inProgress = append(r.inProgress, r.ongoing)
	}
	r.admitted, r.refused = append(r.admitted, 0), append(r.refused, 0)
}

// last ends the last column.
func (r *recorder) last() { r.inProgress = append(r.inProgress, r.ongoing) }

// lastMinute is how many were admitted in the minute before the end of each column.
func (r *recorder) lastMinute() []float64 {
	amounts := make([]float64, len(r.admitted))
	for i := range amounts {
		end := time.Duration(i+1) * columnWidth
		for _, at := range r.at {
			if at < end && at >= end-time.Minute {
				amounts[i]++
			}
		}
	}
	return amounts
}
