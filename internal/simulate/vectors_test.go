package simulate_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// vector is a public test of another rate limiter, as far as a trace can tell it.
type vector struct {
	ID        string
	Kind      string
	Algorithm string
	Params    struct {
		Limit    int64
		Rate     int64
		Burst    int64
		MaxBurst *int64 `json:"max_burst"`
		WindowMS int64  `json:"window_ms"`
		PeriodMS int64  `json:"period_ms"`
	}
	Tolerance json.RawMessage
	Steps     []struct {
		AtMS   int64 `json:"at_ms"`
		Op     string
		Cost   int64
		Repeat int
		Expect struct {
			Allowed      *bool
			AllowedUnits *int64 `json:"allowed_units"`
			Remaining    *int64
			RetryAfterMS *int64 `json:"retry_after_ms"`
			ResetAfterMS *int64 `json:"reset_after_ms"`
		}
	}
}

// sequences are the vectors about one counter. Their others are the engine's to
// answer, see package limiter.
var sequences = strings.Fields("gub-01 gub-03 gub-04 gub-07a gub-07b gub-08 gub-09 gub-10 gub-11 gub-18 " +
	"rr-02 rr-03 rr-05 cell-01 cell-02 thr-01")

var traceOps = map[string]string{"take": "take", "peek": "peek", "refund": "refund", "take_at_most": "takeUpTo"}

func TestVectorsOfOtherLimiters(t *testing.T) {
	// Some have more fields, of other kinds, than this test reads.
	var raw []json.RawMessage
	if err := json.Unmarshal(read(t, "../limiter/testdata/vectors.json"), &raw); err != nil {
		t.Fatal(err)
	}
	vectors := map[string]vector{}
	for _, text := range raw {
		var v vector
		if json.Unmarshal(text, &v) == nil {
			vectors[v.ID] = v
		}
	}
	for _, id := range sequences {
		for store, open := range stores {
			t.Run(id+"/"+store, func(t *testing.T) {
				v, found := vectors[id]
				if !found {
					t.Fatal("there is no such vector")
				}
				v.check(t, simulation(t, v.policy(), v.trace(t), open, testredis.Prefix(t)))
			})
		}
	}
}

func (v vector) policy() []byte {
	p := v.Params
	requests := cmp.Or(p.Rate, p.Limit)
	algorithm := "FixedWindow, anchor: FirstRequest"
	if v.Algorithm == "gcra" || v.Algorithm == "leaky_bucket" {
		burst := cmp.Or(p.Burst, requests)
		if p.MaxBurst != nil {
			burst = *p.MaxBurst + 1
		}
		algorithm = fmt.Sprintf("TokenBucket, burst: %d", burst)
	}
	return fmt.Appendf(nil, "apiVersion: tallyman.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: v}\n"+
		"spec: {selector: {}, limits: [{name: l, requests: %d, window: %dms, algorithm: %s}]}\n",
		requests, cmp.Or(p.WindowMS, p.PeriodMS, 60_000), algorithm)
}

func (v vector) trace(t *testing.T) []byte {
	var trace []byte
	for _, s := range v.Steps {
		if s.Repeat > 1 || traceOps[s.Op] == "" {
			t.Fatalf("%q is not of a kind that a trace can tell", s.Op)
		}
		trace = fmt.Appendf(trace, `{"at":"%dms","op":%q,"cost":%d}`+"\n", s.AtMS, traceOps[s.Op], max(s.Cost, -s.Cost))
	}
	return trace
}

// answer is a line of the output.
type answer struct {
	Allowed      bool
	Granted      int64
	Remaining    int64
	RetryAfterMs *int64
	ResetAfterMs int64
	Reason       string
}

func (v vector) check(t *testing.T, output string) {
	// Where a clock was a real one, the times are near.
	near := int64(0)
	if len(v.Tolerance) > 0 {
		near = 10
	}
	lines := strings.Split(strings.TrimSpace(output), "\n")
	if len(lines) != len(v.Steps) {
		t.Fatalf("%d answers for %d steps", len(lines), len(v.Steps))
	}
	for i, line := range lines {
		var got answer
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatal(err)
		}
		want := v.Steps[i].Expect
		if got.Reason == "CostExceedsLimit" {
			want.RetryAfterMS = new(int64(-1)) // whatever others hope for
		}
		if want.Allowed != nil && got.Allowed != *want.Allowed ||
			want.AllowedUnits != nil && got.Granted != *want.AllowedUnits ||
			want.Remaining != nil && got.Remaining != *want.Remaining ||
			want.RetryAfterMS != nil && !isNear(got.hint(), *want.RetryAfterMS, near) ||
			want.ResetAfterMS != nil && !isNear(got.ResetAfterMs, *want.ResetAfterMS, near) {
			t.Errorf("step %d: %s", i, line)
		}
	}
}

// hint is when to try again, or -1 where the vectors' limiters say nothing.
func (a answer) hint() int64 {
	if a.Allowed || a.RetryAfterMs == nil {
		return -1
	}
	return *a.RetryAfterMs
}

func isNear(got, want, tolerance int64) bool { return max(got-want, want-got) <= tolerance }
