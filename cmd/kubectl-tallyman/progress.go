package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tallyman-dev/tallyman/internal/simulate"
)

// progress shows once a second how far a long simulation has come.
type progress struct {
	*simulate.Summary
	out   io.Writer
	shown time.Time
}

// newProgress shows progress to whoever watches standard error and not the
// decisions themselves.
func newProgress(s *simulate.Summary, stdout, stderr io.Writer) simulate.Observer {
	if !isTerminal(stderr) || isTerminal(stdout) {
		return s
	}
	return &progress{Summary: s, out: stderr, shown: time.Now()}
}

// Decided implements simulate.Observer.
func (p *progress) Decided(r *simulate.Request, d *simulate.Decision) {
	p.Summary.Decided(r, d)
	if time.Since(p.shown) < time.Second {
		return
	}
	p.shown = time.Now()
	fmt.Fprintf(p.out, "%d requests so far, %v simulated\n", p.Requests+p.Peeks+p.Refunds, p.Latest)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
