package main

import (
	"math/bits"
	"sync/atomic"
)

// Each power of two is divided into subBuckets, so a bucket is at most 0.8 % wide.
const (
	subBits    = 7
	subBuckets = 1 << subBits
	maxBits    = 35 // 34 s; what takes longer counts as that
	buckets    = (maxBits - subBits + 1) * subBuckets
)

// histogram counts durations in ns. It is safe for concurrent use.
type histogram struct {
	counts [buckets]atomic.Uint32
}

func bucketOf(ns int64) int {
	v := uint64(min(max(ns, 0), 1<<maxBits-1))
	shift := max(0, bits.Len64(v)-subBits-1)
	return shift*subBuckets + int(v>>shift)
}

// middleOf is the ns that stand for a bucket.
func middleOf(bucket int) float64 {
	if bucket < 2*subBuckets {
		return float64(bucket)
	}
	shift := bucket/subBuckets - 1
	low := uint64(bucket-shift*subBuckets) << shift
	return float64(low) + float64(uint64(1)<<shift)/2
}

func (h *histogram) record(ns int64) { h.counts[bucketOf(ns)].Add(1) }

func (h *histogram) reset() {
	for i := range h.counts {
		h.counts[i].Store(0)
	}
}

// histograms are shards: a caller records in one that it shares with few others.
type histograms []histogram

func (hs histograms) shard(i int) *histogram { return &hs[i%len(hs)] }

func (hs histograms) reset() {
	for i := range hs {
		hs[i].reset()
	}
}

// percentile is the ns that the share p (0..1) of all records does not exceed; 0
// without records.
func (hs histograms) percentile(p float64) float64 {
	var total uint64
	for i := range hs {
		for j := range hs[i].counts {
			total += uint64(hs[i].counts[j].Load())
		}
	}
	var seen uint64
	for bucket := range buckets {
		for i := range hs {
			seen += uint64(hs[i].counts[bucket].Load())
		}
		if seen > 0 && float64(seen) >= p*float64(total) {
			return middleOf(bucket)
		}
	}
	return 0
}
