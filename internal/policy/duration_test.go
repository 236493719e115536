package policy_test

import (
	"encoding/json"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

func TestADurationIsReadAsGEP2257WritesIt(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0s":         0,
		"1ms":        time.Millisecond,
		"500ms":      500 * time.Millisecond,
		"60s":        time.Minute,
		"1h1m1s1ms":  time.Hour + time.Minute + time.Second + time.Millisecond,
		"10s30m1h":   time.Hour + 30*time.Minute + 10*time.Second, // in any order
		"1m1m":       2 * time.Minute,
		"99999h":     99999 * time.Hour,
		"00001h":     time.Hour,
		"8784h":      366 * 24 * time.Hour,
		"1440m":      24 * time.Hour,
		"1h60m3600s": 3 * time.Hour,
	} {
		got, err := policy.ParseDuration(text)
		if err != nil || time.Duration(got) != want {
			t.Errorf("%q is %v, %v; want %v", text, time.Duration(got), err, want)
		}
	}
}

// The tables of vectors kua-01 and ulu-02 are the ways in which others write
// rates. Kuadrant reads a window that it does not understand as 0 s, and a
// negative limit as 0; ulule's limiter has a form of its own, 10-S. Here the
// window is a GEP-2257 duration or an error, and there is no such short form.
func TestADurationInAnotherFormIsAnError(t *testing.T) {
	for _, text := range []string{
		"", " ", "1", "0", "s", "5d", "1d", "1w", "unknown", "1.5h", "-1m", "+1m", "1m ", " 1m", "1 m", "1M", "1us", "1µs", "1ns",
		"100000h", "1h1m1s1ms1ms", "1m\n", "١m", "10-S", "356-M", "2000-D", "10 S", "10:S", "AZERTY", "H-10",
	} {
		if got, err := policy.ParseDuration(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}

func TestADurationIsReadBackAsItWas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ms := rapid.Int64Range(0, int64(time.Duration(policy.MaxWindow)/time.Millisecond)).Draw(t, "ms")
		d := policy.Duration(time.Duration(ms) * time.Millisecond)
		data, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		var got policy.Duration
		if err := json.Unmarshal(data, &got); err != nil || got != d {
			t.Fatalf("%d ms is written as %s and read as %v, %v", ms, data, got, err)
		}
	})
}
