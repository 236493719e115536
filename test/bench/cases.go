package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// loadCase is one way to load the contestants.
type loadCase struct {
	name        string
	contestants []string
	baseline    string // whose throughput is 1.00 ×
	callers     int
	cores       int // for Go code; 0: all
	keys        int
	order       func(keys int) []uint32
	limit       limit
	limits      int
	every       int  // see load
	known       bool // each key has been asked for before: what is measured is the steady state
}

const manyKeys = 10_000

// refusing admits one request an hour.
var refusing = limit{Requests: 1, Window: time.Hour, Burst: 1}

// The names of the cases that are no loadCases.
const (
	accuracyCase = "accuracy"
	steadyCase   = "saturation/even"
	unevenCase   = "saturation/uneven"
	bytesCase    = "bytes"
)

// loadCases are the cases for which contestants are loaded, with these numbers of
// callers where that is what varies.
func loadCases(callers []int) []loadCase {
	remote := []string{tallyman, redisRate, throttledName, ululeName, rueidisWindow, rueidisTuned, bareDecision, floorScript, floorIncr}
	local := []string{tallymanLeased, xTimeRate, xTimeByKey}

	var cases []loadCase
	add := func(c loadCase) {
		if c.keys == 0 {
			c.keys = 1
		}
		if c.order == nil {
			c.order = uniform
		}
		if c.limit == (limit{}) {
			c.limit = plenty
		}
		c.limits = max(c.limits, 1)
		c.every = max(c.every, 1)
		cases = append(cases, c)
	}
	for _, n := range callers {
		every := 8
		if n == 1 {
			every = 1
		}
		add(loadCase{name: fmt.Sprintf("exact/hot/%d", n), contestants: remote, baseline: redisRate, callers: n, every: every})
		add(loadCase{name: fmt.Sprintf("exact/10k/%d", n), contestants: remote, baseline: redisRate, callers: n, every: every, keys: manyKeys})
		if n == 64 {
			add(loadCase{name: "exact/zipf/64", contestants: remote, baseline: redisRate, callers: n, every: every, keys: manyKeys, order: zipf})
		}
	}
	add(loadCase{name: "algorithms/10k/64", contestants: []string{tallyman, tallymanFixedWindow, tallymanSlidingWindow, tallymanSlidingLog},
		baseline: tallyman, callers: 64, every: 8, keys: manyKeys})
	for _, callers := range []int{1, 64} {
		for n := range 3 {
			add(loadCase{name: fmt.Sprintf("limits/%d/%d", n+1, callers), contestants: []string{tallyman},
				callers: callers, every: min(callers, 8), keys: manyKeys, limits: n + 1})
		}
	}
	add(loadCase{name: "denied/hot/64", contestants: slices.Concat(remote[:6], local[:1]), baseline: redisRate,
		callers: 64, every: 16, limit: refusing})
	for cores := 1; cores <= 2; cores++ {
		for _, keys := range []int{1, manyKeys} {
			name := fmt.Sprintf("leased/%s/%dcore", map[int]string{1: "hot", manyKeys: "10k"}[keys], cores)
			add(loadCase{name: name, contestants: local, baseline: xTimeRate, callers: cores, cores: cores, every: 256, keys: keys, known: true})
		}
		add(loadCase{name: fmt.Sprintf("denied/hot/%dcore", cores), contestants: []string{tallyman, tallymanLeased, xTimeRate},
			baseline: xTimeRate, callers: cores, cores: cores, every: 256, limit: refusing})
	}
	for _, keys := range []int{1, manyKeys} {
		name := fmt.Sprintf("crowd/%s/1024", map[int]string{1: "hot", manyKeys: "10k"}[keys])
		add(loadCase{name: name, contestants: remote[:6], baseline: redisRate, callers: 1024, every: 8, keys: keys})
	}
	services := []string{rlsTallyman, rlsTallymanLeased, rlsEmpty}
	if os.Getenv("BENCH_RLS_PEER") != "" {
		services = append(services, rlsPeer)
	}
	add(loadCase{name: "rls/10k/64", contestants: services, baseline: rlsEmpty, callers: 64, every: 8, keys: manyKeys, known: true})
	return cases
}

// chosen tells whether a name begins with one of the prefixes, or there are none.
func chosen(name string, prefixes []string) bool {
	return len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}
