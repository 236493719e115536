// Package lint looks for what is legal in a policy and is probably not meant.
//
// It is pure. What is not legal is refused by packages policy and match, which come
// before.
package lint

import (
	"fmt"
	"slices"
	"time"

	"github.com/tallyman-dev/tallyman/internal/match"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

const (
	// longWindow is one that Redis may well not live through without persistence.
	longWindow = policy.Duration(24 * time.Hour)
	// longLog is a SlidingLog with some 100 kB for each key.
	longLog = 1000
)

// Warnings are in the order of the limits; what concerns the whole policy comes
// first. The spec has its defaults and is valid, and compiled is made of it.
func Warnings(spec *policy.Spec, compiled *match.Policy) policy.Errors {
	var all policy.Errors
	if how := Evadable(spec, compiled); how != "" {
		all.Add("limits", "%s", how)
	}
	for i := range spec.Limits {
		limit, path := &spec.Limits[i], fmt.Sprintf("limits[%d]", i)
		if j := coveredBy(spec.Limits, i); j >= 0 {
			all.Add(path, "never refuses a request, since limits[%d] (%s), for the same requests or more, refuses before: "+
				"remove one, or lower this one", j, spec.Limits[j].Name)
		}
		if admitsNothing(limit) {
			all.Add(path+".requests", "refuses every request that the limit is for: raise it, or name those that it is to admit in overrides")
		}
		if outlivesRedis(limit) {
			all.Add(path+windowField(limit), "counts over a day or more, and begins anew if Redis loses its data meanwhile: "+
				"have Redis write an append-only file (see docs/redis.md)")
		}
		if limit.Algorithm == policy.SlidingLog && *limit.Requests >= longLog {
			all.Add(path+".algorithm", "stores each admitted request, up to %d for each key: "+
				"SlidingWindow keeps two numbers for each key, and is nearly as exact (see docs/counting.md)", *limit.Requests)
		}
	}
	return all
}

// admitsNothing says whether a limit refuses whatever it meets.
func admitsNothing(l *policy.Limit) bool {
	return *l.Requests == 0 && !slices.ContainsFunc(l.Overrides, func(o policy.Override) bool {
		return o.Action == policy.OverrideExempt || o.Requests != nil && *o.Requests > 0
	})
}

func outlivesRedis(l *policy.Limit) bool {
	if l.Calendar == nil {
		return l.Window >= longWindow
	}
	return l.Calendar.Period != policy.PeriodMinute && l.Calendar.Period != policy.PeriodHour
}

func windowField(l *policy.Limit) string {
	if l.Calendar != nil {
		return ".calendar"
	}
	return ".window"
}
