package simulate

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Answers writes decisions, each as a JSON object on a line.
type Answers struct {
	out     *bufio.Writer
	encoder *json.Encoder
}

// NewAnswers writes to out, which is complete after a Flush.
func NewAnswers(out io.Writer) *Answers {
	buffered := bufio.NewWriter(out)
	encoder := json.NewEncoder(buffered)
	encoder.SetEscapeHTML(false)
	return &Answers{buffered, encoder}
}

// Write writes the decision about a request of a time. The line is where the
// request is found, or 0 if each line is one.
func (a *Answers) Write(line int64, at string, d *Decision) error {
	if err := a.encoder.Encode(recordOf(line, at, d)); err != nil {
		return fmt.Errorf("write a decision: %w", err)
	}
	return nil
}

// Flush writes what is held back.
func (a *Answers) Flush() error {
	if err := a.out.Flush(); err != nil {
		return fmt.Errorf("write decisions: %w", err)
	}
	return nil
}

// record is a line of the output. A null is a figure that there is none of.
type record struct {
	Line         int64  `json:"line,omitempty"`
	At           string `json:"at"`
	Allowed      bool   `json:"allowed"`
	Granted      int64  `json:"granted"`
	Limit        string `json:"limit"`
	Remaining    *int64 `json:"remaining"`
	RetryAfterMs *int64 `json:"retryAfterMs"`
	ResetAfterMs *int64 `json:"resetAfterMs"`
	Reason       string `json:"reason"`
}

func recordOf(line int64, at string, d *Decision) record {
	out := record{Line: line, At: at, Allowed: d.Allowed, Granted: d.Granted, Limit: d.Limit, Reason: d.Reason}
	if d.Counted {
		out.Remaining = &d.Remaining
		out.ResetAfterMs = new(milliseconds(d.ResetAfter))
	}
	if d.Allowed || d.RetryAfter > 0 {
		out.RetryAfterMs = new(milliseconds(d.RetryAfter))
	}
	return out
}

// milliseconds rounds up: a request at that time is admitted.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
