package lint

import (
	"reflect"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// coveredBy finds another limit that refuses all that limit i would, or -1. Of two
// limits that are equal the later one is covered.
func coveredBy(limits []policy.Limit, i int) int {
	for j := range limits {
		if j != i && covers(&limits[j], &limits[i]) && (j < i || !covers(&limits[i], &limits[j])) {
			return j
		}
	}
	return -1
}

// covers says whether b never refuses a request that a admits, as long as the store
// answers. It knows the plain cases only: no says nothing.
func covers(a, b *policy.Limit) bool {
	return isPlain(a) && isPlain(b) && countsAllOf(a, b) && isStricter(a, b)
}

// isPlain leaves out what would need more thought: overrides, pods that overshoot or
// refuse while others have something left, and requests in progress.
func isPlain(l *policy.Limit) bool {
	return len(l.Overrides) == 0 && l.Distribution.Mode == policy.Exact && l.Algorithm != policy.Concurrency
}

// countsAllOf says whether a counts each request that b counts, at the same cost and
// on no more counters.
func countsAllOf(a, b *policy.Limit) bool {
	everyRequest := len(a.Match) == 0 && len(a.Except) == 0
	sameRequests := reflect.DeepEqual(a.Match, b.Match) && reflect.DeepEqual(a.Except, b.Except)
	sameKeys := reflect.DeepEqual(a.Key, b.Key) && a.OnMissingKey == b.OnMissingKey
	oneCounter := len(a.Key) == 0 && b.OnMissingKey != policy.MissingDeny // which refuses whatever is left
	return (everyRequest || sameRequests) && (oneCounter || sameKeys) && reflect.DeepEqual(a.Cost, b.Cost)
}

// isStricter compares the numbers.
func isStricter(a, b *policy.Limit) bool {
	if a.Algorithm == b.Algorithm && a.Anchor == b.Anchor && a.Window == b.Window && reflect.DeepEqual(a.Calendar, b.Calendar) {
		return *a.Requests <= *b.Requests && burst(a) <= burst(b)
	}
	// Over a time of a's window, a admits at most what is in two of its windows, or a
	// full bucket and a window's refill. An estimate of b is of two windows.
	inWindows := a.Calendar == nil && b.Calendar == nil
	return inWindows && a.Window/2 >= b.Window && *a.Requests+burst(a) <= min(*b.Requests, burst(b))
}

// burst is the most that is admitted at one time.
func burst(l *policy.Limit) int64 {
	if l.Burst != nil {
		return *l.Burst
	}
	return *l.Requests
}
