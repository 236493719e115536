package lint

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tallyman-dev/tallyman/internal/limiter"
	"github.com/tallyman-dev/tallyman/internal/policyfile"
	"github.com/tallyman-dev/tallyman/internal/simulate"
)

// Whatever two limits and whenever requests come: one that is said to be covered
// refuses none.
func TestALimitThatIsCoveredRefusesNothing(t *testing.T) {
	outer := t
	pairs := rapid.Custom(func(t *rapid.T) string {
		return fmt.Sprintf(policyHead+"  - {name: a, %s}\n  - {name: b, %s}\n", drawLimit(t), drawLimit(t))
	}).Filter(func(text string) bool {
		limits := parse(outer, text).Limits
		return covers(&limits[0], &limits[1])
	})
	rapid.Check(t, func(t *rapid.T) {
		text := pairs.Draw(t, "policy")
		if refused := refusals(outer, text, rapid.SliceOfN(rapid.IntRange(0, 700), 1, 80).Draw(t, "gaps")); refused > 0 {
			t.Fatalf("b alone refused %d requests:\n%s", refused, text)
		}
	})
}

func drawLimit(t *rapid.T) string {
	requests := rapid.IntRange(1, 6).Draw(t, "requests") * rapid.SampledFrom([]int{1, 3}).Draw(t, "times")
	text := fmt.Sprintf("requests: %d, window: %ds, algorithm: %s", requests,
		rapid.SampledFrom([]int{1, 2, 5, 10}).Draw(t, "window"),
		rapid.SampledFrom([]string{"FixedWindow", "FixedWindow, anchor: FirstRequest", "SlidingWindow", "SlidingLog", "TokenBucket"}).Draw(t, "algorithm"))
	if strings.HasSuffix(text, "TokenBucket") && rapid.Bool().Draw(t, "has a burst") {
		text += fmt.Sprintf(", burst: %d", rapid.IntRange(1, 20).Draw(t, "burst"))
	}
	return text
}

// refusals are those of the limit b alone, when requests come at these distances, in ms.
func refusals(t testing.TB, text string, gaps []int) int {
	t.Helper()
	var policies simulate.Policies
	if err := policyfile.Parse("policy.yaml", []byte(text), "default", policies.Add); err != nil {
		t.Fatal(err)
	}
	var trace strings.Builder
	at := 0
	for _, gap := range gaps {
		at += gap
		fmt.Fprintf(&trace, "{\"at\":\"%dms\"}\n", at)
	}
	clock := simulate.NewClock(time.Date(2024, time.January, 1, 0, 0, 0, 0, time.UTC))
	engine := simulate.NewEngine(&policies, clock, limiter.NewSimulatedMemory(clock.Now), "p")
	var refused alone
	if err := simulate.Run(t.Context(), simulate.NewTrace("trace", strings.NewReader(trace.String())), engine, io.Discard, &refused); err != nil {
		t.Fatal(err)
	}
	return int(refused)
}

// alone counts requests that the first limit admits and the second one refuses.
type alone int

func (n *alone) Decided(_ *simulate.Request, d *simulate.Decision) {
	if d.Limits[0].Allowed && !d.Limits[1].Allowed {
		*n++
	}
}
