package replay

import (
	"context"
	"fmt"
	"time"

	"github.com/tallyman-dev/tallyman/internal/accesslog"
	"github.com/tallyman-dev/tallyman/internal/simulate"
)

// Side is a set of policies to replay a log against. The engine's clock starts at
// the beginning of 1970.
type Side struct {
	// Name is for the report, such as the policies' file.
	Name   string
	Engine *simulate.Engine
	// Answers has each decision written to it; nil for none.
	Answers *simulate.Answers
}

// Replay decides the requests of a log, by one side or by two to compare. It is
// for one goroutine.
type Replay struct {
	sides []*side
	// Requests that only the second side refuses, and that only it admits.
	newlyRefused, newlyAdmitted int64

	first, latest int64 // times of the log in µs since 1970; 0 before the first
	stepsBack     int64
	largestStep   int64 // back, in µs

	request simulate.Request
}

// side is what one side has decided.
type side struct {
	Side
	total  tally
	limits []limitTally
}

// limitTally counts a limit's own answers.
type limitTally struct {
	simulate.LimitInfo
	tally
	refusedKeys keyCounts
}

// New returns a replay against one side, or against two to see what the second would
// change.
func New(sides ...Side) *Replay {
	r := &Replay{request: simulate.Request{Op: simulate.Take}}
	for _, from := range sides {
		s := &side{Side: from}
		for _, l := range from.Engine.Limits() {
			s.limits = append(s.limits, limitTally{LimitInfo: l, refusedKeys: keyCounts{}})
		}
		r.sides = append(r.sides, s)
	}
	return r
}

// Latest is the latest time of the log so far.
func (r *Replay) Latest() time.Time { return timeOf(r.latest) }

// Decide decides requests in the order of the log, which is that of their times but
// for a little. A time that goes back is met as a clock that does so.
func (r *Replay) Decide(ctx context.Context, entries []accesslog.Entry) error {
	for i := range entries {
		if err := r.decide(ctx, &entries[i]); err != nil {
			return fmt.Errorf("decide a request of %s: %w", timeOf(entries[i].Micros).Format(time.RFC3339), err)
		}
	}
	return nil
}

func (r *Replay) decide(ctx context.Context, e *accesslog.Entry) error {
	r.note(e.Micros)
	r.request.Since, r.request.Match = time.Duration(e.Micros)*time.Microsecond, e.Request
	var refusals [2]*keyCount // by side; nil where the request is admitted
	for i, s := range r.sides {
		d, err := s.Engine.Decide(ctx, &r.request)
		if err != nil {
			return err
		}
		if s.Answers != nil {
			if err := s.Answers.Write(e.Line, timeOf(e.Micros).Format(time.RFC3339Nano), &d); err != nil {
				return err
			}
		}
		refusals[i] = s.count(e, &r.request, &d)
	}
	if len(r.sides) == 2 {
		r.compare(refusals[0], refusals[1])
	}
	return nil
}

// note follows the time.
func (r *Replay) note(micros int64) {
	if r.first == 0 || micros < r.first {
		r.first = micros
	}
	if back := r.latest - micros; back > 0 {
		r.stepsBack++
		r.largestStep = max(r.largestStep, back)
	}
	r.latest = max(r.latest, micros)
}

// count adds a decision to the side's tallies. Of a request that is refused it returns
// the key under the limit that is named.
func (s *side) count(e *accesslog.Entry, r *simulate.Request, d *simulate.Decision) (refusal *keyCount) {
	s.total.add(e.Micros, d.Allowed)
	for i := range d.Limits {
		own := &d.Limits[i]
		l := &s.limits[own.Index]
		l.add(e.Micros, own.Allowed)
		if own.Allowed {
			continue
		}
		key := l.refusedKeys.find(own.Key)
		if key == nil {
			key = l.refusedKeys.note(own.Key, s.Engine.KeyText(own.Index, &r.Match, e.ClientName))
		}
		key.n++
		if !d.Allowed && l.Name == d.Limit {
			refusal = key
		}
	}
	return refusal
}

// compare counts a request that one side refuses and the other admits.
func (r *Replay) compare(before, after *keyCount) {
	switch {
	case before == nil && after != nil:
		r.newlyRefused++
		after.alone++
	case before != nil && after == nil:
		r.newlyAdmitted++
		before.alone++
	}
}

func timeOf(micros int64) time.Time { return time.UnixMicro(micros).UTC() }
