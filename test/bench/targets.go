package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"strconv"
)

// target is what a number of ours is held to.
type target struct {
	name                         string
	caseName, contestant, metric string
	// against is whose number ours is divided by; without one it stands for itself.
	against reference
	sense   sense
	bound   float64
}

// reference is a contestant in a case; "" is the case of our own number.
type reference struct {
	caseName, contestant string
}

var none reference

func peer(contestant string) reference { return reference{"", contestant} }

type sense string

const (
	atLeast sense = "≥"
	atMost  sense = "≤"
)

// The names of cases that targets speak of.
const (
	many1         = "exact/10k/1"
	hot1          = "exact/hot/1"
	many64        = "exact/10k/64"
	many256       = "exact/10k/256"
	hot64         = "exact/hot/64"
	hot256        = "exact/hot/256"
	oneLimit      = "limits/1/1"
	threeLimits   = "limits/3/1"
	oneLimit64    = "limits/1/64"
	threeLimits64 = "limits/3/64"
	leasedHot1    = "leased/hot/1core"
	leasedMany1   = "leased/10k/1core"
	leasedHot2    = "leased/hot/2core"
	leasedMany2   = "leased/10k/2core"
	denied2       = "denied/hot/2core"
	denied64      = "denied/hot/64"
	crowdHot      = "crowd/hot/1024"
	crowdMany     = "crowd/10k/1024"
	rls64         = "rls/10k/64"
)

// targets are the engine's promises. They hold for medians of at least five
// repeats on two cores that nobody else uses.
var targets = []target{
	{"many keys, 64 callers: throughput", many64, tallyman, throughput, peer(redisRate), atLeast, 4},
	{"many keys, 64 callers: throughput", many64, tallyman, throughput, peer(rueidisWindow), atLeast, 1.8},
	{"many keys, 64 callers: p99", many64, tallyman, p99, peer(redisRate), atMost, 0.25},
	{"many keys, 64 callers: client's CPU", many64, tallyman, clientCPU, peer(redisRate), atMost, 0.25},
	{"many keys, 64 callers: allocations", many64, tallyman, allocs, none, atMost, 2},
	{"many keys, 256 callers: throughput", many256, tallyman, throughput, peer(redisRate), atLeast, 5},
	{"one caller: p50", many1, tallyman, p50, peer(bareDecision), atMost, 1.05},
	{"one caller: p50", hot1, tallyman, p50, peer(bareDecision), atMost, 1.05},

	{"one key, 64 callers: throughput", hot64, tallyman, throughput, peer(redisRate), atLeast, 15},
	{"one key, 64 callers: Redis calls", hot64, tallyman, calls, none, atMost, 0.05},
	{"one key, 64 callers: allocations", hot64, tallyman, allocs, none, atMost, 2},
	{"one key, 256 callers: throughput", hot256, tallyman, throughput, peer(redisRate), atLeast, 30},

	{"three limits, one caller: time", threeLimits, tallyman, period, reference{oneLimit, tallyman}, atMost, 1.5},
	{"three limits, 64 callers: time", threeLimits64, tallyman, period, reference{oneLimit64, tallyman}, atMost, 1.5},

	{"leased, one core, one key: ns", leasedHot1, tallymanLeased, period, none, atMost, 100},
	{"leased, one core, one key: allocations", leasedHot1, tallymanLeased, allocs, none, atMost, 0.001},
	{"leased, one core, many keys: ns", leasedMany1, tallymanLeased, period, none, atMost, 100},
	{"leased, one core, many keys: allocations", leasedMany1, tallymanLeased, allocs, none, atMost, 0.001},
	{"leased, two cores, one key: throughput", leasedHot2, tallymanLeased, throughput, none, atLeast, 10e6},
	{"leased, two cores, one key: throughput", leasedHot2, tallymanLeased, throughput, peer(xTimeRate), atLeast, 1},
	{"leased, two cores, one key: Redis calls", leasedHot2, tallymanLeased, calls, none, atMost, 0.001},
	{"leased, two cores, many keys: throughput", leasedMany2, tallymanLeased, throughput, peer(xTimeByKey), atLeast, 1},

	{"denied, two cores: throughput against leased", denied2, tallyman, throughput, reference{leasedHot2, tallymanLeased}, atLeast, 1},
	// What refused a key is asked again now and then.
	{"denied, two cores: Redis calls", denied2, tallyman, calls, none, atMost, 0.0001},
	{"denied, 64 callers: Redis calls", denied64, tallyman, calls, none, atMost, 0.0001},

	{"1024 callers, one key: wrong answers", crowdHot, tallyman, wrong, none, atMost, 0},
	{"1024 callers, many keys: wrong answers", crowdMany, tallyman, wrong, none, atMost, 0},

	{"rate limit service: throughput", rls64, rlsTallyman, throughput, peer(rlsEmpty), atLeast, 0.7},
	{"rate limit service, leased: throughput", rls64, rlsTallymanLeased, throughput, peer(rlsEmpty), atLeast, 0.95},
	{"rate limit service against a peer: throughput", rls64, rlsTallyman, throughput, peer(rlsPeer), atLeast, 1.8},

	{"proxy, no limit: throughput", proxyCase, proxyTallyman, throughput, peer(proxyReverse), atLeast, 1.2},
	{"proxy, leased: throughput", proxyCase, proxyLeased, throughput, peer(proxyReverse), atLeast, 1.15},
	{"proxy, exact: throughput", proxyCase, proxyExact, throughput, peer(proxyReverse), atLeast, 1},
	{"proxy, no limit, 70 % load: p99 added, ns", proxyPacedCase, proxyTallyman, p99Added, none, atMost, 1e6},
	{"proxy, leased, 70 % load: p99 added, ns", proxyPacedCase, proxyLeased, p99Added, none, atMost, 1e6},
	{"proxy, exact, 70 % load: p99 added, ns", proxyPacedCase, proxyExact, p99Added, none, atMost, 1e6},
	{"proxy, at rest: MiB", proxyMemoryCase, proxyExact, memoryAtRest, none, atMost, 25},
	{"proxy, 10,000 requests/s: MiB", proxyMemoryCase, proxyExact, memoryAtPeak, none, atMost, 64},
	{"sidecar's program: MB", proxyMemoryCase, proxyExact, programSize, none, atMost, 25},

	{"four processes, TokenBucket: over", accuracyCase, tallyman, over, none, atMost, 0},
	{"four processes, TokenBucket: share", accuracyCase, tallyman, fulfilled, none, atLeast, 0.995},
	{"four processes, FixedWindow: over", accuracyCase, tallymanFixedWindow, over, none, atMost, 0},
	{"four processes, FixedWindow: share", accuracyCase, tallymanFixedWindow, fulfilled, none, atLeast, 1},
	{"four processes, SlidingWindow: over", accuracyCase, tallymanSlidingWindow, over, none, atMost, 0},
	{"four processes, SlidingWindow: share", accuracyCase, tallymanSlidingWindow, fulfilled, none, atLeast, 0.995},
	{"four processes, SlidingLog: over", accuracyCase, tallymanSlidingLog, over, none, atMost, 0},
	{"four processes, SlidingLog: share", accuracyCase, tallymanSlidingLog, fulfilled, none, atLeast, 1},
	{"four processes, leased: over", accuracyCase, tallymanLeased, over, none, atMost, 0},

	{"leased, saturated: Redis calls for each unit", steadyCase, tallymanLeased, perUnit, none, atMost, 0.2},
	{"leased, saturated: over", steadyCase, tallymanLeased, over, none, atMost, 0},
	{"leased, uneven: over", unevenCase, tallymanLeased, over, none, atMost, 0},
	{"leased, uneven: share", unevenCase, tallymanLeased, fulfilled, none, atLeast, 0.97},
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
func (t target) check(r results, planned func(caseName, contestant string) bool) (verdict, float64) {
	against := t.divisor()
	if !planned(t.caseName, t.contestant) || against != none && !planned(against.caseName, against.contestant) {
		return skipped, 0
	}
	v, ok := r.median(t.caseName, t.contestant, t.metric)
	if against != none {
		base, hasBase := r.median(against.caseName, against.contestant, t.metric)
		v, ok = v/base, ok && hasBase
	}
	switch {
	case ok && t.sense == atLeast && v >= t.bound, ok && t.sense == atMost && v <= t.bound:
		return passed, v
	default:
		return failed, v
	}
}

// divisor is the reference with its case.
func (t target) divisor() reference {
	if t.against == none {
		return none
	}
	return reference{cmp.Or(t.against.caseName, t.caseName), t.against.contestant}
}

// checkAll prints a line for each target and tells whether none failed.
func checkAll(w io.Writer, ts []target, r results, planned func(caseName, contestant string) bool) bool {
	counts := map[verdict]int{}
	for _, t := range ts {
		verdict, v := t.check(r, planned)
		counts[verdict]++
		if verdict == skipped {
			continue
		}
		_, _ = fmt.Fprintf(w, "%s  %-46s %10s  %s %g%s\n", verdict, t.name, number(v), t.sense, t.bound, t.against)
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

func (r reference) String() string {
	switch {
	case r == none:
		return ""
	case r.caseName == "":
		return " × " + r.contestant
	default:
		return fmt.Sprintf(" × %s in %s", r.contestant, r.caseName)
	}
}
