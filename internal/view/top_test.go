package view

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tallyman-dev/tallyman/internal/operator"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// answer is one of a pod that counts two limits.
func answer(sinceMs int64, keys ...operator.TopKey) operator.Top {
	l := operator.TopLimit{Policy: "orders", Limit: "per-client", Keys: keys}
	for _, k := range keys {
		l.Admitted += k.Admitted
		l.Refused += k.Refused
	}
	total := operator.TopLimit{Policy: "all", Limit: "total", Shadow: true, Admitted: l.Admitted + l.Refused}
	return operator.Top{SinceMs: sinceMs, Limits: []operator.TopLimit{l, total}}
}

func TestRatesAreSummedOverPodsSinceTheSampleBefore(t *testing.T) {
	var m Meter
	first := m.Rates(noon, "", []Sample{
		{Pod: "a", Top: answer(0)},
		{Pod: "b", Top: answer(60_000, operator.TopKey{Key: "alice", Admitted: 1000, Refused: 1000})},
		{Pod: "c", Err: errors.New("it has no sidecar")},
	})
	if want := (Rates{At: noon, Pods: 2, Unanswered: []Unanswered{{Pod: "c", Error: "it has no sidecar"}}, Limits: []LimitRate{}}); cmp.Diff(want, first) != "" {
		t.Errorf("first rates are %+v", first)
	}
	second := m.Rates(noon, "", []Sample{
		{Pod: "a", Top: answer(2000, operator.TopKey{Key: "alice", Admitted: 2, Refused: 8}, operator.TopKey{Key: "bob", Admitted: 40})},
		{Pod: "b", Top: answer(64_000, operator.TopKey{Key: "alice", Admitted: 1004, Refused: 1004})},
	})
	want := []LimitRate{
		{Policy: "orders", Limit: "per-client", Rate: Rate{Admitted: 22, Refused: 5}, Keys: []KeyRate{
			{"alice", Rate{Admitted: 2, Refused: 5}}, {"bob", Rate{Admitted: 20}},
		}},
		{Policy: "all", Limit: "total", Shadow: true, Rate: Rate{Admitted: 27}},
	}
	if diff := cmp.Diff(want, second.Limits); diff != "" {
		t.Errorf("rates (-want +got):\n%s", diff)
	}
}

func TestASidecarThatBeginsAnewHasRatesSinceThen(t *testing.T) {
	var m Meter
	m.Rates(noon, "", []Sample{{Pod: "a", Top: answer(60_000, operator.TopKey{Key: "alice", Admitted: 1000})}})
	r := m.Rates(noon, "orders", []Sample{{Pod: "a", Top: answer(1000, operator.TopKey{Key: "alice", Admitted: 3})}})
	if len(r.Limits) != 1 || r.Limits[0].Rate != (Rate{Admitted: 3}) {
		t.Errorf("rates are %+v", r.Limits)
	}
	// One that was made anew by itself has lower counts.
	r = m.Rates(noon, "orders", []Sample{{Pod: "a", Top: answer(2000, operator.TopKey{Key: "alice", Admitted: 1})}})
	if len(r.Limits) != 1 || r.Limits[0].Rate != (Rate{}) {
		t.Errorf("rates are %+v", r.Limits)
	}
}

func TestTopShowsTheMostRefusedFirst(t *testing.T) {
	r := Rates{At: noon, Pods: 2, Unanswered: []Unanswered{{Pod: "orders-c", Error: "connection\x1b[2J refused"}}, Limits: []LimitRate{
		{Namespace: "shop", Policy: "orders", Limit: "per-client", Rate: Rate{22, 5}, Keys: []KeyRate{
			{"alice", Rate{2, 5}}, {"bob", Rate{20, 0}}, {"carol", Rate{}},
		}},
		{Namespace: "shop", Policy: "all", Limit: "total", Shadow: true, Rate: Rate{27, 0}},
	}}
	for name, c := range map[string]struct {
		options TopOptions
		want    string
	}{
		"by key": {TopOptions{ByKey: true, Rows: 20}, `12:00:00  2 sidecars answered
no answer: orders-c: connection\x1b[2J refused

POLICY  LIMIT           KEY    REFUSED/S  ADMITTED/S
orders  per-client      alice  5.0        2.0
all     total (shadow)  (all)  0.0        27.0
orders  per-client      bob    0.0        20.0
`},
		"by limit in all namespaces, one row": {TopOptions{Namespaces: true, Rows: 1}, `12:00:00  2 sidecars answered
no answer: orders-c: connection\x1b[2J refused

NAMESPACE  POLICY  LIMIT       REFUSED/S  ADMITTED/S
shop       orders  per-client  5.0        22.0
and 1 more
`},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			if err := r.WriteText(&b, c.options); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, b.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTopTellsHowToSeeTheValuesOfHashes(t *testing.T) {
	const hint = "1 sidecar answered; keys with # are hashes: --reveal shows their values\n"
	for name, c := range map[string]struct {
		key     string
		options TopOptions
		want    bool
	}{
		"a hash":                  {"#2bd806", TopOptions{ByKey: true, Rows: 1}, true},
		"an address":              {"10.0.0.1", TopOptions{ByKey: true, Rows: 1}, false},
		"a value like a hash":     {"#2bd806", TopOptions{ByKey: true, Rows: 1, Revealed: true}, false},
		"a hash that is no row's": {"#2bd806", TopOptions{Rows: 1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := Rates{At: noon, Pods: 1, Limits: []LimitRate{{Rate: Rate{1, 0}, Keys: []KeyRate{{c.key, Rate{1, 0}}}}}}
			var b strings.Builder
			if err := r.WriteText(&b, c.options); err != nil || strings.Contains(b.String(), hint) != c.want {
				t.Errorf("%v, shown:\n%s", err, &b)
			}
		})
	}
}

func TestValuesOfClientsCannotMoveTheCursor(t *testing.T) {
	for value, want := range map[string]string{
		"alice":                  "alice",
		"müller":                 "müller",
		"\x1b[31mred\a\r\n":      `\x1b[31mred\a\r\n`,
		"\u202eevil":             `\u202eevil`,
		"bad\xff":                `bad�`,
		strings.Repeat("a", 100): strings.Repeat("a", 64) + "…",
	} {
		if got := clean(value); got != want {
			t.Errorf("%q is shown as %q, want %q", value, got, want)
		}
	}
}
