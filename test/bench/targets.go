package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
)

// value is where a number comes from.
type value struct {
	caseName, contestant, metric string
}

// target is what a number of ours is held to.
type target struct {
	name string
	ours value
	// against is what our number is divided by; without one it stands for itself.
	against value
	sense   sense
	bound   float64
}

type sense string

const (
	atLeast sense = "≥"
	atMost  sense = "≤"
)

// targets are the engine's promises. They hold for medians of at least five
// repeats on two cores that nobody else uses.
var targets = []target{
	{"many keys, 64 callers: throughput", value{"exact/10k/64", tallyman, throughput}, value{"exact/10k/64", redisRate, throughput}, atLeast, 4},
	{"many keys, 64 callers: throughput", value{"exact/10k/64", tallyman, throughput}, value{"exact/10k/64", rueidisWindow, throughput}, atLeast, 1.8},
	{"many keys, 64 callers: p99", value{"exact/10k/64", tallyman, p99}, value{"exact/10k/64", redisRate, p99}, atMost, 0.25},
	{"many keys, 64 callers: client's CPU", value{"exact/10k/64", tallyman, clientCPU}, value{"exact/10k/64", redisRate, clientCPU}, atMost, 0.25},
	{"many keys, 64 callers: allocations", value{"exact/10k/64", tallyman, allocs}, value{}, atMost, 2},
	{"many keys, 256 callers: throughput", value{"exact/10k/256", tallyman, throughput}, value{"exact/10k/256", redisRate, throughput}, atLeast, 5},
	{"one caller: p50", value{"exact/10k/1", tallyman, p50}, value{"exact/10k/1", floorScript, p50}, atMost, 1.05},
	{"one caller: allocations", value{"exact/10k/1", tallyman, allocs}, value{}, atMost, 2},

	{"one key, 64 callers: throughput", value{"exact/hot/64", tallyman, throughput}, value{"exact/hot/64", redisRate, throughput}, atLeast, 15},
	{"one key, 64 callers: Redis calls", value{"exact/hot/64", tallyman, calls}, value{}, atMost, 0.05},
	{"one key, 64 callers: allocations", value{"exact/hot/64", tallyman, allocs}, value{}, atMost, 2},
	{"one key, 256 callers: throughput", value{"exact/hot/256", tallyman, throughput}, value{"exact/hot/256", redisRate, throughput}, atLeast, 30},

	{"three limits: time", value{"limits/3/64", tallyman, period}, value{"limits/1/64", tallyman, period}, atMost, 1.5},
	{"three limits: CPU", value{"limits/3/64", tallyman, cpu}, value{"limits/1/64", tallyman, cpu}, atMost, 1.5},

	{"leased, one core, one key: ns", value{"leased/hot/1core", tallymanLeased, period}, value{}, atMost, 100},
	{"leased, one core, one key: allocations", value{"leased/hot/1core", tallymanLeased, allocs}, value{}, atMost, 0.001},
	{"leased, one core, many keys: ns", value{"leased/10k/1core", tallymanLeased, period}, value{}, atMost, 100},
	{"leased, one core, many keys: allocations", value{"leased/10k/1core", tallymanLeased, allocs}, value{}, atMost, 0.001},
	{"leased, two cores, one key: throughput", value{"leased/hot/2core", tallymanLeased, throughput}, value{}, atLeast, 10e6},
	{"leased, two cores, one key: throughput", value{"leased/hot/2core", tallymanLeased, throughput}, value{"leased/hot/2core", xTimeRate, throughput}, atLeast, 1},
	{"leased, two cores, one key: Redis calls", value{"leased/hot/2core", tallymanLeased, calls}, value{}, atMost, 0.001},
	{"leased, two cores, many keys: throughput", value{"leased/10k/2core", tallymanLeased, throughput}, value{"leased/10k/2core", xTimeRate, throughput}, atLeast, 1},

	{"denied, two cores: throughput against leased", value{"denied/hot/2core", tallyman, throughput}, value{"leased/hot/2core", tallymanLeased, throughput}, atLeast, 1},
	{"denied, two cores: Redis calls", value{"denied/hot/2core", tallyman, calls}, value{}, atMost, 0},
	{"denied, 64 callers: Redis calls", value{"denied/hot/64", tallyman, calls}, value{}, atMost, 0},

	{"1024 callers, one key: wrong answers", value{"crowd/hot/1024", tallyman, wrong}, value{}, atMost, 0},
	{"1024 callers, many keys: wrong answers", value{"crowd/10k/1024", tallyman, wrong}, value{}, atMost, 0},

	{"four processes, TokenBucket: over", value{accuracyCase, tallyman, over}, value{}, atMost, 0},
	{"four processes, TokenBucket: share", value{accuracyCase, tallyman, fulfilled}, value{}, atLeast, 0.995},
	{"four processes, FixedWindow: over", value{accuracyCase, tallymanFixedWindow, over}, value{}, atMost, 0},
	{"four processes, FixedWindow: share", value{accuracyCase, tallymanFixedWindow, fulfilled}, value{}, atLeast, 1},
	{"four processes, SlidingWindow: over", value{accuracyCase, tallymanSlidingWindow, over}, value{}, atMost, 0},
	{"four processes, SlidingWindow: share", value{accuracyCase, tallymanSlidingWindow, fulfilled}, value{}, atLeast, 0.995},
	{"four processes, SlidingLog: over", value{accuracyCase, tallymanSlidingLog, over}, value{}, atMost, 0},
	{"four processes, SlidingLog: share", value{accuracyCase, tallymanSlidingLog, fulfilled}, value{}, atLeast, 1},
	{"four processes, leased: over", value{accuracyCase, tallymanLeased, over}, value{}, atMost, 0},

	{"leased, saturated: Redis calls for each unit", value{steadyCase, tallymanLeased, perUnit}, value{}, atMost, 0.2},
	{"leased, saturated: over", value{steadyCase, tallymanLeased, over}, value{}, atMost, 0},
	{"leased, uneven: over", value{unevenCase, tallymanLeased, over}, value{}, atMost, 0},
	{"leased, uneven: share", value{unevenCase, tallymanLeased, fulfilled}, value{}, atLeast, 0.97},
}

// verdict is what became of a target.
type verdict string

const (
	passed  verdict = "PASS"
	failed  verdict = "FAIL"
	skipped verdict = "SKIP" // its cases were not to be run
)

// check compares a target with the results, if the run was to measure what it
// speaks of. What was to be measured and was not is a failure, and NaN.
func (t target) check(r results, planned func(value) bool) (verdict, float64) {
	if !planned(t.ours) || t.against != (value{}) && !planned(t.against) {
		return skipped, 0
	}
	v, ok := r.median(t.ours.caseName, t.ours.contestant, t.ours.metric)
	if t.against != (value{}) {
		base, hasBase := r.median(t.against.caseName, t.against.contestant, t.against.metric)
		v, ok = v/base, ok && hasBase
	}
	switch {
	case ok && t.sense == atLeast && v >= t.bound, ok && t.sense == atMost && v <= t.bound:
		return passed, v
	default:
		return failed, v
	}
}

// checkAll prints a line for each target and tells whether none failed.
func checkAll(w io.Writer, ts []target, r results, planned func(value) bool) bool {
	counts := map[verdict]int{}
	for _, t := range ts {
		verdict, v := t.check(r, planned)
		counts[verdict]++
		if verdict == skipped {
			continue
		}
		_, _ = fmt.Fprintf(w, "%s  %-46s %10s  %s %g%s\n", verdict, t.name, number(v), t.sense, t.bound, t.reference())
	}
	_, _ = fmt.Fprintf(w, "%d targets held, %d failed, %d not measured\n", counts[passed], counts[failed], counts[skipped])
	return counts[failed] == 0
}

func number(v float64) string {
	if math.IsNaN(v) {
		return "no result"
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

func (t target) reference() string {
	if t.against == (value{}) {
		return ""
	}
	if t.against.caseName != t.ours.caseName {
		return fmt.Sprintf(" × %s in %s", t.against.contestant, t.against.caseName)
	}
	return " × " + t.against.contestant
}
