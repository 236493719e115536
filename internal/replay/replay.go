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
	sides   []*side
	changes [2]keyCounts // by whether the second side admits

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
			s.limits = append(s.limits, limitTally{LimitInfo: l})
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
	var fates [2]fate
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
		fates[i].admitted = d.Allowed
		s.count(e, &r.request, &d, &fates[i])
	}
	if len(r.sides) == 2 && fates[0].admitted != fates[1].admitted {
		r.change(&fates)
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

// fate is what becomes of a request on one side.
type fate struct {
	admitted bool
	// Of a refused request, the limit that is named, and the key there.
	limit string
	key   *keyCount
}

// count adds a decision to the side's tallies.
func (s *side) count(e *accesslog.Entry, r *simulate.Request, d *simulate.Decision, f *fate) {
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
		if l.Name == d.Limit {
			f.limit, f.key = l.Name, key
		}
	}
}

// change counts a request whose fate differs, by the limit and the key of the side
// that refuses it.
func (r *Replay) change(fates *[2]fate) {
	refusing, changes := &fates[1], &r.changes[0]
	if fates[1].admitted {
		refusing, changes = &fates[0], &r.changes[1]
	}
	id := refusing.limit + " " + refusing.key.text // limits' names have no space
	key := changes.find(id)
	if key == nil {
		key = changes.note(id, refusing.key.text)
		key.limit = refusing.limit
	}
	key.n++
	changes.total++
}

func timeOf(micros int64) time.Time { return time.UnixMicro(micros).UTC() }
