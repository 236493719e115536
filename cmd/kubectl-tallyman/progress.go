package main

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/tallyman-dev/tallyman/internal/simulate"
)

// everySecond says when there is something to show again. Its value is when that
// was last.
type everySecond time.Time

func (e *everySecond) due() bool {
	if time.Since(time.Time(*e)) < time.Second {
		return false
	}
	*e = everySecond(time.Now())
	return true
}

// progress shows once a second how far a long simulation has come.
type progress struct {
	*simulate.Summary
	out   io.Writer
	shown everySecond
}

// newProgress shows progress to whoever watches standard error and not the
// decisions themselves.
func newProgress(s *simulate.Summary, stdout, stderr io.Writer) simulate.Observer {
	if !isTerminal(stderr) || isTerminal(stdout) {
		return s
	}
	return &progress{Summary: s, out: stderr, shown: everySecond(time.Now())}
}

// Decided implements simulate.Observer.
func (p *progress) Decided(r *simulate.Request, d *simulate.Decision) {
	p.Summary.Decided(r, d)
	if !p.shown.due() {
		return
	}
	fmt.Fprintf(p.out, "%d requests so far, %v simulated\n", p.Requests+p.Peeks+p.Refunds, p.Latest)
}

// logProgress shows once a second how far the reading of a log has come.
type logProgress struct {
	out     io.Writer // nil when nobody watches
	counted *countingReader
	size    int64 // of the log in bytes; 0 when it is not known
	began   time.Time
	shown   everySecond
}

// newLogProgress shows progress to whoever watches standard error. The log is read
// from in, by way of counted.
func newLogProgress(stderr io.Writer, in io.Reader, counted *countingReader) *logProgress {
	p := &logProgress{counted: counted, began: time.Now(), shown: everySecond(time.Now())}
	if isTerminal(stderr) {
		p.out = stderr
	}
	if f, ok := in.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			p.size = info.Size()
		}
	}
	return p
}

func (p *logProgress) show(requests int64, latest time.Time) {
	if p.out == nil || !p.shown.due() {
		return
	}
	part := ""
	if p.size > 0 {
		part = fmt.Sprintf(" (%d%%)", 100*p.counted.read.Load()/p.size)
	}
	fmt.Fprintf(p.out, "%d requests so far%s, %.0f/s, up to %s\n",
		requests, part, float64(requests)/time.Since(p.began).Seconds(), latest.Format(time.RFC3339))
}

// countingReader counts what is read. Whoever counts may be another goroutine.
type countingReader struct {
	in   io.Reader
	read atomic.Int64 // bytes
}

// Read implements io.Reader.
func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.in.Read(p)
	r.read.Add(int64(n))
	return n, err
}
