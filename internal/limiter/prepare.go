package limiter

import (
	"fmt"
	"time"

	"github.com/tallyman-dev/tallyman/internal/calendar"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

// plan is what an Engine needs to know of a rule beyond its numbers. The zero
// value is an Exact limit whose failure is its caller's to handle.
type plan struct {
	distribution policy.Distribution
	failure      policy.FailurePolicy
	// backstop is the units of a window that each pod admits by itself; 0 is the
	// pod's share.
	backstop int64
}

// PrepareLimit makes the rule of a policy's limit, which has its defaults and is
// valid.
func PrepareLimit(l *policy.Limit) (*Rule, error) {
	limit := Limit{
		Algorithm:    l.Algorithm,
		Requests:     *l.Requests,
		Window:       time.Duration(l.Window),
		Burst:        burst(l.Burst, *l.Requests),
		FirstRequest: l.Anchor == policy.AnchorFirstRequest,
	}
	if l.Calendar != nil {
		windows, err := calendar.New(calendar.Period(l.Calendar.Period), l.Calendar.TimeZone)
		if err != nil {
			return nil, err
		}
		limit.Calendar = windows
	}
	r, err := NewRule(limit)
	if err != nil {
		return nil, err
	}
	r.plan = plan{distribution: l.Distribution, failure: l.FailurePolicy}
	if l.Backstop != nil {
		r.backstop = l.Backstop.Requests
	}
	return r, nil
}

// PrepareOverrides makes the rules of a limit's overrides: nil for those that have
// no numbers of their own. Their counters are those of the limit.
func PrepareOverrides(of *Rule, overrides []policy.Override) ([]*Rule, error) {
	rules := make([]*Rule, len(overrides))
	for i := range overrides {
		if overrides[i].Action != policy.OverrideLimit {
			continue
		}
		r, err := prepareOverride(of, &overrides[i])
		if err != nil {
			return nil, fmt.Errorf("overrides[%d]: %w", i, err)
		}
		rules[i] = r
	}
	return rules, nil
}

func prepareOverride(of *Rule, o *policy.Override) (*Rule, error) {
	limit := of.limit
	limit.Requests, limit.Burst = *o.Requests, burst(o.Burst, *o.Requests)
	r, err := NewRule(limit)
	if err != nil {
		return nil, err
	}
	r.plan = of.plan
	return r, nil
}

// burst is a bucket's size. A limit of 0 needs no bucket to refuse.
func burst(set *int64, requests int64) int64 {
	if set != nil && requests > 0 {
		return *set
	}
	return max(1, requests)
}
