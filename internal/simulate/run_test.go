package simulate

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// script is a Decider that answers what it was told to.
type script struct {
	decisions []Decision
	asked     int
	err       error // after the decisions
}

func (s *script) Decide(context.Context, *Request) (Decision, error) {
	if s.asked == len(s.decisions) {
		return Decision{}, s.err
	}
	s.asked++
	return s.decisions[s.asked-1], nil
}

func TestOutputHasALinePerRequest(t *testing.T) {
	trace := NewTrace("t", strings.NewReader(strings.Repeat("{\"at\":\"1.5s\"}\n", 5)))
	decider := &script{decisions: []Decision{
		{Allowed: true, Granted: 1, Limit: "per-client", Counted: true, Remaining: 99, ResetAfter: 600 * time.Millisecond},
		{Limit: "per-client", Counted: true, Reason: "LimitExceeded",
			RetryAfter: 1000*time.Millisecond + time.Microsecond, ResetAfter: time.Microsecond},
		{Limit: "per-client", Counted: true, Remaining: 3, ResetAfter: time.Minute, Reason: "CostExceedsLimit"},
		{Limit: "a<b", Reason: "KeyMissing"},
		{Allowed: true, Granted: 1},
	}}
	var out bytes.Buffer
	if err := Run(t.Context(), trace, decider, &out, NewSummary(nil)); err != nil {
		t.Fatal(err)
	}
	want := `{"at":"1.5s","allowed":true,"granted":1,"limit":"per-client","remaining":99,"retryAfterMs":0,"resetAfterMs":600,"reason":""}
{"at":"1.5s","allowed":false,"granted":0,"limit":"per-client","remaining":0,"retryAfterMs":1001,"resetAfterMs":1,"reason":"LimitExceeded"}
{"at":"1.5s","allowed":false,"granted":0,"limit":"per-client","remaining":3,"retryAfterMs":null,"resetAfterMs":60000,"reason":"CostExceedsLimit"}
{"at":"1.5s","allowed":false,"granted":0,"limit":"a<b","remaining":null,"retryAfterMs":null,"resetAfterMs":null,"reason":"KeyMissing"}
{"at":"1.5s","allowed":true,"granted":1,"limit":"","remaining":null,"retryAfterMs":0,"resetAfterMs":null,"reason":""}
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

func TestLinesBeforeAFaultAreWritten(t *testing.T) {
	allowed := []Decision{{Allowed: true}, {Allowed: true}}
	broken := errors.New("connection refused")
	for name, tc := range map[string]struct {
		trace   string
		decider script
		want    string
	}{
		"invalid line":    {"{\"at\":\"0s\"}\n{\"at\":\"0s\"}\nx\n{\"at\":\"0s\"}\n", script{decisions: allowed}, "t:3: "},
		"undecided line":  {"{\"at\":\"0s\"}\n{\"at\":\"0s\"}\n{\"at\":\"0s\"}\n", script{decisions: allowed, err: broken}, "decide t:3: connection refused"},
		"no fault at all": {"{\"at\":\"0s\"}\n{\"at\":\"0s\"}\n", script{decisions: allowed}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := Run(t.Context(), NewTrace("t", strings.NewReader(tc.trace)), &tc.decider, &out, NewSummary(nil))
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("ended with %v, want %q", err, tc.want)
			}
			if n := strings.Count(out.String(), "\n"); n != 2 {
				t.Errorf("wrote %d lines, want 2:\n%s", n, &out)
			}
			if tc.decider.asked != 2 {
				t.Errorf("asked for %d decisions, want 2", tc.decider.asked)
			}
		})
	}
}

// Whoever writes a request and waits for its answer must not wait for ever.
func TestAnswersAreNotHeldBackWhileTheTraceIsWaitedFor(t *testing.T) {
	requests, send := io.Pipe()
	receive, answers := io.Pipe()
	done := make(chan error)
	go func() {
		decider := &script{decisions: []Decision{{Allowed: true}, {Allowed: true}}}
		done <- Run(t.Context(), NewTrace("t", requests), decider, answers, NewSummary(nil))
	}()
	answer := make([]byte, 1024)
	for range 2 {
		if _, err := send.Write([]byte("{\"at\":\"0s\"}\n")); err != nil {
			t.Fatal(err)
		}
		if n, err := receive.Read(answer); err != nil || !bytes.HasSuffix(answer[:n], []byte("\n")) {
			t.Fatalf("read %q, %v", answer[:n], err)
		}
	}
	_ = send.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// closed is an output that nobody reads any more.
type closed struct{}

func (closed) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestOutputThatCannotBeWrittenEndsTheRun(t *testing.T) {
	decider := &script{decisions: make([]Decision, 9)}
	err := Run(t.Context(), NewTrace("t", strings.NewReader(strings.Repeat("{\"at\":\"0s\"}\n", 9))), decider, closed{}, NewSummary(nil))
	if err == nil || strings.Count(err.Error(), "broken pipe") != 1 {
		t.Errorf("ended with %v, want the failure once", err)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	decider := &script{}
	err := Run(ctx, NewTrace("t", strings.NewReader("{\"at\":\"0s\"}\n")), decider, io.Discard, NewSummary(nil))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}

func TestSummary(t *testing.T) {
	s := NewSummary([]LimitInfo{{Name: "per-client"}, {Name: "trial", Shadow: true}})
	own := func(first, second bool) []LimitDecision {
		return []LimitDecision{{Index: 0, Allowed: first}, {Index: 1, Allowed: second}}
	}
	for _, d := range []struct {
		op Op
		Decision
	}{
		{Take, Decision{Allowed: true, Limits: own(true, true)}},
		{Take, Decision{Allowed: true, Limits: own(true, false)}},
		{TakeUpTo, Decision{Allowed: false, Limits: own(false, true)}},
		{Peek, Decision{Allowed: false, Limits: own(false, false)}},
		{Refund, Decision{Allowed: true, Limits: own(true, true)}},
		{Take, Decision{Allowed: true}},
	} {
		s.Decided(&Request{Op: d.op, Since: 90 * time.Second}, &d.Decision)
	}
	s.Decided(&Request{Op: Peek, Since: time.Second}, &Decision{})
	var out bytes.Buffer
	if err := s.Write(&out); err != nil {
		t.Fatal(err)
	}
	want := `4 requests: 3 admitted, 1 refused; 2 peeks, 1 refunds; 1m30s simulated
LIMIT       ALLOWED  REFUSED
per-client  2        1
trial       2        1  (shadow: refusals are not carried out)
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
}
