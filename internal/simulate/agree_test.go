package simulate_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// Whatever the policies and the trace, both stores say the same.
func TestStoresAgree(t *testing.T) {
	outer := t
	runs := 0
	rapid.Check(t, func(t *rapid.T) {
		policies := []byte(drawPolicies(t))
		trace := []byte(strings.Join(rapid.SliceOfN(rapid.Custom(drawLine), 1, 60).Draw(t, "trace"), "\n"))
		runs++
		prefix := fmt.Sprintf("%s-%d", testredis.Prefix(outer), runs)
		memory := simulation(outer, policies, trace, stores["Memory"], prefix)
		redis := simulation(outer, policies, trace, stores["Redis"], prefix)
		if diff := cmp.Diff(memory, redis); diff != "" {
			t.Fatalf("output (-memory +redis):\n%s\npolicies:\n%s\ntrace:\n%s", diff, policies, trace)
		}
	})
}

// Whatever came before, takeUpTo leaves not one unit that it could have had.
func TestTakeUpToTakesAllThatThereIs(t *testing.T) {
	outer := t
	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.SliceOfN(rapid.Custom(drawLine), 0, 20).Draw(t, "trace")
		const request = `{"at":"%s","method":"POST","headers":{"X-Api-Key":"a"},"clientIP":"10.0.0.1","op":%q,"cost":%d}`
		at := rapid.SampledFrom([]string{"0s", "1ms", "30s", "59m", "36h"}).Draw(t, "time")
		lines = append(lines, fmt.Sprintf(request, at, "takeUpTo", 8), fmt.Sprintf(request, at, "peek", 1))
		output := strings.Split(simulation(outer, []byte(drawPolicies(t)), []byte(strings.Join(lines, "\n")), stores["Memory"], "p"), "\n")
		var took, after answer
		for i, into := range []*answer{&took, &after} {
			if err := json.Unmarshal([]byte(output[len(lines)-2+i]), into); err != nil {
				t.Fatal(err)
			}
		}
		if took.Granted < 8 && after.Allowed || took.Allowed != (took.Granted > 0) || took.Granted > 8 {
			t.Fatalf("takeUpTo 8 got %+v, and a peek after it %+v", took, after)
		}
	})
}

// limits are forms of limits; %[1]d is a number of requests, %[2]d one of
// seconds and %[3]s what follows.
var limits = []string{
	"algorithm: FixedWindow, requests: %[1]d, window: %[2]ds, %[3]s",
	"algorithm: FixedWindow, anchor: FirstRequest, requests: %[1]d, window: %[2]ds, %[3]s",
	"algorithm: FixedWindow, requests: %[1]d, calendar: {period: Day, timeZone: Europe/Berlin}, %[3]s",
	"algorithm: SlidingWindow, requests: %[1]d, window: %[2]ds, %[3]s",
	"algorithm: SlidingLog, requests: %[1]d, window: %[2]ds, %[3]s",
	"algorithm: TokenBucket, requests: %[1]d, window: %[2]ds, %[3]s",
	"algorithm: Concurrency, requests: %[1]d, window: %[2]ds, %[3]s",
}

// options follow in a limit.
var options = []string{
	"key: [{header: {name: X-Api-Key}}]",
	"key: [{header: {name: X-Api-Key}}], onMissingKey: Deny, overrides: [{keys: [a], requests: 1}, {keys: [b], action: Exempt}]",
	"match: [{methods: [POST]}], cost: {requests: 2}",
	"key: [{clientIP: {}}], onMissingKey: Skip",
}

func drawPolicies(t *rapid.T) string {
	var text strings.Builder
	for i := range rapid.IntRange(1, 2).Draw(t, "policies") {
		fmt.Fprintf(&text, "---\napiVersion: tallyman.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: p%d}\nspec:\n", i)
		fmt.Fprintf(&text, "  selector: {}\n  enforcement: %s\n  limits:\n", rapid.SampledFrom([]string{"Enforce", "Shadow"}).Draw(t, "enforcement"))
		for j := range rapid.IntRange(1, 3).Draw(t, "limits") {
			fmt.Fprintf(&text, "  - {name: l%d, ", j)
			fmt.Fprintf(&text, rapid.SampledFrom(limits).Draw(t, "limit"), rapid.IntRange(0, 9).Draw(t, "requests"),
				rapid.SampledFrom([]int{1, 7, 60, 3600}).Draw(t, "window"), rapid.SampledFrom(options).Draw(t, "options"))
			text.WriteString("}\n")
		}
	}
	return text.String()
}

func drawLine(t *rapid.T) string {
	at := rapid.SampledFrom([]int64{1, 1_000, 1_000_000, 60_000_000, 86_400_000_000}).Draw(t, "unit") * rapid.Int64Range(0, 70).Draw(t, "at")
	line := fmt.Sprintf(`{"at":"%dus","method":%q,"op":%q`, at,
		rapid.SampledFrom([]string{"GET", "POST"}).Draw(t, "method"),
		rapid.SampledFrom([]string{"take", "take", "peek", "refund", "takeUpTo"}).Draw(t, "op"))
	if rapid.Bool().Draw(t, "hasCost") {
		line += fmt.Sprintf(`,"cost":%d`, rapid.SampledFrom([]int64{0, 1, 2, 3, 7, 20, 1<<53 - 1}).Draw(t, "cost"))
	}
	if key := rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "key"); key != "" {
		line += fmt.Sprintf(`,"headers":{"X-Api-Key":%q},"clientIP":"10.0.0.%d"`, key, key[0])
	}
	return line + "}"
}
