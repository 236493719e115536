package main

import (
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

func TestPercentileIsWithinOnePercent(t *testing.T) {
	hs := make(histograms, 3)
	for ns := int64(1); ns <= 1_000_000; ns++ {
		hs.shard(int(ns)).record(ns)
	}
	for _, p := range []float64{0.01, 0.5, 0.9, 0.99, 1} {
		if got, want := hs.percentile(p), p*1e6; math.Abs(got-want) > want/100 {
			t.Errorf("percentile %v of 1..1000000 is %v", p, got)
		}
	}
	hs.reset()
	if got := hs.percentile(0.5); got != 0 {
		t.Errorf("%v without records", got)
	}
}

func TestEveryDurationHasABucket(t *testing.T) {
	last := -1
	for _, ns := range []int64{-1, 0, 1, 127, 128, 255, 256, 257, 1 << 20, 1 << 34, 1<<35 - 1, 1 << 35, math.MaxInt64} {
		b := bucketOf(ns)
		if b < last || b >= buckets {
			t.Fatalf("%d ns are in bucket %d after %d, of %d", ns, b, last, buckets)
		}
		last = b
		if in := min(max(ns, 0), 1<<maxBits-1); math.Abs(middleOf(b)-float64(in)) > float64(in)/subBuckets {
			t.Errorf("%d ns stand as %v", ns, middleOf(b))
		}
	}
}

func TestMedian(t *testing.T) {
	for _, tc := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 2, 100}, 3},
	} {
		if got := median(tc.values); got != tc.want {
			t.Errorf("median of %v is %v", tc.values, got)
		}
	}
}

func TestCountsSamplesThatOthersDisturbed(t *testing.T) {
	r := results{}
	for _, cores := range []float64{0, quiet, quiet + 0.01, 2} {
		r.add("load", "ours", map[string]float64{otherCPU: cores})
	}
	r.add(accuracyCase, "ours", map[string]float64{over: 0})
	if n, of := r.disturbed(); n != 2 || of != 4 {
		t.Errorf("%d of %d", n, of)
	}
}

func TestTableShowsMediansAndRatios(t *testing.T) {
	r := results{}
	for _, v := range []float64{1000, 3000, 2_000_000} {
		r.add("exact", "a", map[string]float64{throughput: v, p50: 1500})
	}
	r.add("exact", "b", map[string]float64{throughput: 1500})
	var out strings.Builder
	writeTable(&out, r, []row{{"exact", "a", "b"}, {"exact", "b", "b"}, {"exact", "absent", "b"}, {"other", "a", ""}},
		[]column{{"decisions/s", throughput, thousands}, {"p50 µs", p50, microseconds}})
	want := `
| case  | contestant | decisions/s |    × | p50 µs |
| ----- | ---------- | ----------: | ---: | -----: |
| exact | a          |       3.0 k | 2.00 |    1.5 |
| exact | b          |       1.5 k | 1.00 |      – |

`
	if got := "\n" + out.String(); got != want {
		t.Errorf("got%s", got)
	}
}

func TestTargets(t *testing.T) {
	r := results{}
	r.add("load", "ours", map[string]float64{throughput: 400, allocs: 2})
	r.add("load", "peer", map[string]float64{throughput: 100})
	r.add("load2", "ours", map[string]float64{throughput: 200})
	for name, tc := range map[string]struct {
		target target
		want   verdict
	}{
		"ratio holds":          {target{"", "load", "ours", throughput, peer("peer"), atLeast, 4}, passed},
		"ratio does not hold":  {target{"", "load", "ours", throughput, peer("peer"), atLeast, 4.01}, failed},
		"number holds":         {target{"", "load", "ours", allocs, none, atMost, 2}, passed},
		"number does not hold": {target{"", "load", "ours", allocs, none, atMost, 1.9}, failed},
		"ours has no result":   {target{"", "load", "ours", p99, none, atMost, 1}, failed},
		"peer has no result":   {target{"", "load", "ours", allocs, peer("peer"), atMost, 1}, failed},
		"other case":           {target{"", "load", "ours", throughput, reference{"load2", "ours"}, atLeast, 2}, passed},
		"ours is not planned":  {target{"", "later", "ours", throughput, none, atLeast, 1}, skipped},
		"peer is not planned":  {target{"", "load", "ours", throughput, reference{"later", "ours"}, atLeast, 1}, skipped},
	} {
		got, _ := tc.target.check(r, func(caseName, _ string) bool { return caseName != "later" })
		if got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

func TestCheckFailsWhenOneTargetDoes(t *testing.T) {
	r := results{}
	r.add("load", "ours", map[string]float64{throughput: 400})
	good := target{"good", "load", "ours", throughput, none, atLeast, 400}
	bad := target{"bad", "load", "ours", throughput, none, atLeast, 500}
	all := func(_, _ string) bool { return true }
	if !checkAll(io.Discard, []target{good}, r, all) {
		t.Error("failed, though the target holds")
	}
	var out strings.Builder
	if checkAll(&out, []target{good, bad}, r, all) {
		t.Error("held, though a target does not")
	}
	if got := out.String(); !strings.Contains(got, "FAIL  bad") || !strings.Contains(got, "1 targets held, 1 failed, 0 not measured") {
		t.Errorf("printed %s", got)
	}
}

// A case or a contestant that was renamed would make its targets be skipped.
func TestTargetsSpeakOfCasesThatTheDefaultsRun(t *testing.T) {
	o, err := parse(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	p, err := o.plan()
	if err != nil {
		t.Fatal(err)
	}
	taking := map[string][]string{bytesCase: storing}
	for _, c := range p.loads {
		taking[c.name] = c.contestants
	}
	for _, c := range p.proxies {
		taking[c.name] = c.contestants
	}
	for _, c := range p.shared {
		taking[c.name] = c.contestants
	}
	for _, target := range targets {
		for _, in := range []reference{{target.caseName, target.contestant}, target.divisor()} {
			if in != none && (!p.includes(in.caseName, in.contestant) || !slices.Contains(taking[in.caseName], in.contestant)) {
				t.Errorf("%s: no %s in case %q", target.name, in.contestant, in.caseName)
			}
		}
	}
}

func TestFlags(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"--callers 0", "--callers"},
		{"--callers many", "--callers"},
		{"--contestants nobody", "no contestant \"nobody\""},
		{"--repeat 0", "--repeat"},
		{"exact", "unexpected argument"},
	} {
		if _, err := parse(strings.Fields(tc.args), io.Discard); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %s", tc.args, err, tc.want)
		}
	}
	o, err := parse([]string{"--cases", "nothing"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.plan(); err == nil {
		t.Error("planned a case that is not there")
	}
	if o, err = parse([]string{"--quick", "--cases", "exact/hot"}, io.Discard); err != nil || !slices.Equal(o.cases, []string{"exact/hot"}) || o.repeat != 2 {
		t.Errorf("quick: %+v, %v", o, err)
	}
}

func TestPromised(t *testing.T) {
	l := limit{Requests: 1000, Window: time.Second, Burst: 100}
	from, to := 50*time.Millisecond, 4950*time.Millisecond
	for a, want := range map[policy.Algorithm]int64{
		policy.TokenBucket:   100 + 4900,
		policy.FixedWindow:   5000,
		policy.SlidingLog:    5000,
		policy.SlidingWindow: 4950,
	} {
		if got := promised(a, l, from, to); got != want {
			t.Errorf("%s: %d, want %d", a, got, want)
		}
	}
}

func TestReadsRedisStatistics(t *testing.T) {
	if got := callsIn("calls=17,usec=3,usec_per_call=0.18"); got != 17 {
		t.Errorf("%d calls", got)
	}
	if got := callsIn(""); got != 0 {
		t.Errorf("%d calls of a command that was never called", got)
	}
}

func TestReadsBusyTime(t *testing.T) {
	got, err := busyIn("cpu  100 10 50 9999 888 5 6 7 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
	if want := 178 * tick; err != nil || got != want {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if _, err := busyIn("intr 1 2 3\n"); err == nil {
		t.Error("read what is not there")
	}
}

func TestLoadCountsWhatItsCallersGot(t *testing.T) {
	i := shared(func(_ context.Context, key int) (bool, error) {
		switch key {
		case 0:
			return true, nil
		case 1:
			return false, nil
		default:
			return false, errors.New("broken")
		}
	}, nil)
	hs := make(histograms, 1)
	var steps []string
	l := load{callers: 2, order: []uint32{0, 1, 2, 0}, every: 2}
	got := l.run(t.Context(), i, 5*time.Millisecond, hs,
		func() { steps = append(steps, "begin") }, func() { steps = append(steps, "end") })
	if !slices.Equal(steps, []string{"begin", "end"}) {
		t.Errorf("steps %v", steps)
	}
	// Two of four are admitted and one is an error; a caller can end anywhere.
	if quarter := got.decisions / 4; got.decisions == 0 || abs(got.admitted-2*quarter) > 8 || abs(got.errors-quarter) > 8 {
		t.Errorf("%+v", got)
	}
	if hs.percentile(1) == 0 && got.decisions >= 4 {
		t.Error("timed nothing")
	}
}

func abs(n int64) int64 { return max(n, -n) }

func TestOrders(t *testing.T) {
	count := func(order []uint32) map[uint32]int {
		counts := map[uint32]int{}
		for _, key := range order {
			counts[key]++
		}
		return counts
	}
	even, skewed := count(uniform(10)), count(zipf(10_000))
	for key := range uint32(10) {
		if n := even[key]; n < orderLength/11 || n > orderLength/9 {
			t.Errorf("key %d comes %d times of %d", key, n, orderLength)
		}
	}
	if len(even) != 10 || skewed[0] < orderLength/8 || skewed[0] > orderLength/5 || len(skewed) > 10_000 {
		t.Errorf("%d even keys; of %d skewed ones, the first comes %d times", len(even), len(skewed), skewed[0])
	}
}
