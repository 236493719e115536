package limiter

import (
	"fmt"
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

func TestWarmthIsOfTheWindow(t *testing.T) {
	w := newWarmth()
	h := &Hit{Rule: rule(limitOf(policy.FixedWindow, 10, time.Minute)), Key: "k", Cost: 1}
	second := time.Second.Microseconds()
	for _, step := range []struct{ at, units, used int64 }{
		{0, 3, 3}, {59, 2, 5}, {59, -1, 4}, {60, 1, 1}, {61, -5, 0}, {119, 2, 2},
		{30, 0, 2},      // a clock that is set back a little
		{-3600, 0, 0},   // and one that is not believed
		{100_000, 7, 7}, // windows later
	} {
		now := epoch + step.at*second
		w.note(h, step.units, now)
		if used := w.used(h, now); used != step.used {
			t.Fatalf("at %d s: %d are used, want %d", step.at, used, step.used)
		}
	}
}

// More keys than there are places: none has the units of another, and those of
// many units are the last to be forgotten.
func TestWarmthForgetsTheLeast(t *testing.T) {
	w := newWarmth()
	r := rule(limitOf(policy.FixedWindow, 10, time.Minute))
	hot := &Hit{Rule: r, Key: "hot", Cost: 1}
	w.note(hot, 1000, epoch)
	for i := range 4 * warmBuckets {
		h := &Hit{Rule: r, Key: fmt.Sprint(i), Cost: 1}
		w.note(h, 1, epoch)
		if used := w.used(h, epoch); used != 1 {
			t.Fatalf("key %d has %d units, of which it used 1", i, used)
		}
	}
	if used := w.used(hot, epoch); used != 1000 {
		t.Fatalf("the hot key has %d units left of 1000", used)
	}
}
