package limiter

import "time"

// The groups of hits, as the script numbers them.
const (
	enforced = 1
	shadow   = 2
)

func (h *Hit) group() int {
	if h.Shadow {
		return shadow
	}
	return enforced
}

// decision is one hit's part of an answer.
type decision struct {
	algorithm
	// state before the call.
	state state
	fits  bool
}

// prepare makes a decision yet without an answer for each hit.
func prepare(hits []Hit) ([]decision, error) {
	decisions := make([]decision, len(hits))
	for i := range hits {
		a, err := newAlgorithm(&hits[i])
		if err != nil {
			return nil, err
		}
		decisions[i].algorithm = a
	}
	return decisions, nil
}

// fitting tells the groups that are admitted: the enforced hits, all or none,
// and after them the shadows, all or none.
func fitting(hits []Hit, decisions []decision) (fits [shadow + 1]bool) {
	fits[enforced], fits[shadow] = true, true
	for i := range hits {
		if group := hits[i].group(); !decisions[i].fits {
			fits[group] = false
		}
	}
	fits[shadow] = fits[shadow] && fits[enforced]
	return fits
}

// conclude turns decisions into results. take is false when the call was to
// take nothing.
func conclude(hits []Hit, decisions []decision, take bool) []Result {
	fits := fitting(hits, decisions)
	results := make([]Result, len(hits))
	for i := range hits {
		results[i] = decisions[i].result(take && fits[hits[i].group()])
	}
	return results
}

func (d *decision) result(taken bool) Result {
	s := d.state
	if taken {
		s = d.take(s)
	}
	r := Result{
		Allowed:    d.fits,
		Remaining:  d.remaining(s),
		ResetAfter: micros(max(0, d.resetAt(s)-s.now)),
	}
	switch {
	case d.fits:
	case !d.payable():
		r.Reason = CostExceedsLimit
	default:
		r.Reason = LimitExceeded
		r.RetryAfter = micros(d.retryAt(s) - s.now)
	}
	return r
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
