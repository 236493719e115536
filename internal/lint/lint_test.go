package lint

import (
	"strings"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/match"
	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/policyfile"
)

const policyHead = `apiVersion: tallyman.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: o}
spec:
  selector: {}
  limits:
`

func parse(t testing.TB, text string) policy.Spec {
	t.Helper()
	var spec policy.Spec
	err := policyfile.Parse("policy.yaml", []byte(text), "default", func(d policy.Definition) error {
		spec = d.Spec
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func warnings(t *testing.T, limits string) []string {
	t.Helper()
	spec := parse(t, policyHead+limits)
	compiled, err := match.Compile(&spec)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, w := range Warnings(&spec, compiled) {
		all = append(all, w.Error())
	}
	return all
}

func TestWarnings(t *testing.T) {
	const (
		total = "  - {name: total, requests: 10, window: 1m}\n"
		byKey = "key: [{header: {name: X-Api-Key}}]"
	)
	for name, c := range map[string]struct {
		limits string
		want   []string // the beginning of each
	}{
		"nothing":              {total, nil},
		"nothing admitted":     {"  - {name: a, requests: 0, window: 1m}\n", []string{"spec.limits[0].requests: refuses every request that the limit is for"}},
		"nobody admitted":      {"  - {name: a, requests: 0, window: 1m, " + byKey + ", overrides: [{keys: [a], action: Deny}, {keys: [b], requests: 0}]}\n", []string{"spec.limits[0].requests: "}},
		"somebody exempt":      {"  - {name: a, requests: 0, window: 1m, " + byKey + ", overrides: [{keys: [a], action: Exempt}]}\n", nil},
		"somebody admitted":    {"  - {name: a, requests: 0, window: 1m, " + byKey + ", overrides: [{keys: [a], requests: 5}]}\n", nil},
		"clients choose":       {"  - {name: a, requests: 10, window: 1m, " + byKey + "}\n", []string{"spec.limits: All limits count by what clients write"}},
		"clients choose some":  {total + "  - {name: a, requests: 5, window: 1m, " + byKey + "}\n", nil},
		"a long window":        {"  - {name: a, requests: 10, window: 24h}\n", []string{"spec.limits[0].window: counts over a day"}},
		"a long period":        {"  - {name: a, algorithm: FixedWindow, requests: 10, calendar: {period: Month}}\n", []string{"spec.limits[0].calendar: counts over a day"}},
		"a short period":       {"  - {name: a, algorithm: FixedWindow, requests: 10, calendar: {period: Hour}}\n", nil},
		"a long log":           {"  - {name: a, algorithm: SlidingLog, requests: 5000, window: 1m}\n", []string{"spec.limits[0].algorithm: stores each admitted request, up to 5000"}},
		"a limit twice":        {total + strings.Replace(total, "total", "again", 1), []string{"spec.limits[1]: never refuses a request, since limits[0] (total)"}},
		"a looser limit":       {strings.Replace(total, "total, requests: 10", "loose, requests: 11", 1) + total, []string{"spec.limits[0]: never refuses a request, since limits[1] (total)"}},
		"looser for a client":  {total + "  - {name: a, requests: 20, window: 1m, " + byKey + "}\n", []string{"spec.limits[1]: never"}},
		"a shorter window":     {"  - {name: a, requests: 10, window: 1h}\n  - {name: b, requests: 20, window: 1m}\n", []string{"spec.limits[1]: never"}},
		"a boundary between":   {"  - {name: a, algorithm: FixedWindow, requests: 10, window: 1h}\n  - {name: b, requests: 15, window: 1m}\n", nil},
		"a fuller bucket":      {"  - {name: a, algorithm: TokenBucket, requests: 10, window: 1m, burst: 20}\n  - {name: b, algorithm: TokenBucket, requests: 11, window: 1m}\n", nil},
		"other requests":       {total + "  - {name: a, requests: 20, window: 1m, match: [{methods: [GET]}]}\n", []string{"spec.limits[1]: never"}},
		"fewer requests":       {"  - {name: a, requests: 10, window: 1m, match: [{methods: [GET]}]}\n  - {name: b, requests: 20, window: 1m}\n", nil},
		"another cost":         {total + "  - {name: a, requests: 20, window: 1m, cost: {requests: 5}}\n", nil},
		"a stricter client's":  {total + "  - {name: a, requests: 5, window: 1m, " + byKey + "}\n", nil},
		"an override":          {total + "  - {name: a, requests: 20, window: 1m, " + byKey + ", overrides: [{keys: [x], requests: 1}]}\n", nil},
		"a key that must be":   {total + "  - {name: a, requests: 20, window: 1m, onMissingKey: Deny, " + byKey + "}\n", nil},
		"shares of pods":       {total + "  - {name: a, requests: 20, window: 1m, distribution: {mode: Split}}\n", nil},
		"leases of pods":       {total + "  - {name: a, requests: 20, window: 1m, distribution: {mode: Leased}}\n", nil},
		"one that overshoots":  {strings.Replace(total, "1m", "1m, distribution: {mode: Synced}", 1) + "  - {name: a, requests: 20, window: 1m}\n", nil},
		"requests in progress": {"  - {name: a, algorithm: Concurrency, requests: 5, window: 1m}\n  - {name: b, algorithm: Concurrency, requests: 9, window: 1m}\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := warnings(t, c.limits)
			if len(got) != len(c.want) {
				t.Fatalf("warnings: %q", got)
			}
			for i, want := range c.want {
				if !strings.HasPrefix(got[i], want) {
					t.Errorf("%q does not begin with %q", got[i], want)
				}
			}
		})
	}
}
