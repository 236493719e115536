package main

import (
	"math"
	"slices"
)

// The metrics of a load. CPU is in µs for each decision.
const (
	throughput = "throughput" // decisions a second
	period     = "period"     // ns of wall clock for each decision, of all callers together
	p50        = "p50"        // ns
	p99        = "p99"        // ns
	allocs     = "allocs"     // for each decision
	calls      = "calls"      // commands sent to Redis for each decision
	clientCPU  = "clientCPU"  // of this process
	redisCPU   = "redisCPU"   // of redis-server
	cpu        = "cpu"        // of both; for proxies, of all processes that take part
	failures   = "errors"     // number
	wrong      = "wrong"      // number of decisions that are errors, or refusals where there is plenty
	share      = "share"      // admitted, of all decisions
	otherCPU   = "others"     // cores that others used meanwhile
)

// The metrics of proxies, besides those of a load: there, decisions are requests.
const (
	proxyCPU     = "proxyCPU"     // µs of its process for each request
	p50Added     = "p50Added"     // ns more than without a proxy, at the same rate
	p99Added     = "p99Added"     // the same
	memoryAtRest = "memoryAtRest" // MiB, resident
	memoryAtPeak = "memoryAtPeak" // MiB, resident, the most under load
	programSize  = "programSize"  // MB
)

// The metrics of several processes on one key.
const (
	admitted  = "admitted"  // units
	contract  = "contract"  // the most units that may be admitted
	over      = "over"      // units admitted beyond the contract
	fulfilled = "fulfilled" // admitted ÷ contract
	perUnit   = "perUnit"   // Redis calls for each admitted unit
	asked     = "asked"     // decisions
)

// The metrics of memory, for each counter.
const (
	redisKeys   = "redisKeys"   // keys in Redis
	bytesUsed   = "bytesUsed"   // growth of used_memory
	bytesOfOne  = "bytesOfOne"  // MEMORY USAGE of its keys after one request
	bytesOfMany = "bytesOfMany" // the same after ten
)

// results are the values of each repeat: by case, contestant and metric.
type results map[string]map[string]map[string][]float64

func (r results) add(caseName, contestant string, values map[string]float64) {
	if r[caseName] == nil {
		r[caseName] = map[string]map[string][]float64{}
	}
	if r[caseName][contestant] == nil {
		r[caseName][contestant] = map[string][]float64{}
	}
	for metric, v := range values {
		r[caseName][contestant][metric] = append(r[caseName][contestant][metric], v)
	}
}

// median of what was measured; ok is false if nothing was.
func (r results) median(caseName, contestant, metric string) (v float64, ok bool) {
	values := r[caseName][contestant][metric]
	if len(values) == 0 {
		return math.NaN(), false
	}
	return median(values), true
}

// disturbed is how many of the samples of loads others took more than quiet of.
func (r results) disturbed() (n, of int) {
	for _, contestants := range r {
		for _, metrics := range contestants {
			of += len(metrics[otherCPU])
			for _, cores := range metrics[otherCPU] {
				if cores > quiet {
					n++
				}
			}
		}
	}
	return n, of
}

// median is the middle of the values, of which there is at least one.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
