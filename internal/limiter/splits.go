package limiter

import (
	"context"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// splits decide limits that the live pods share in equal parts: each counts its
// own part, by the arithmetic of Memory, and asks no store. When pods come or go
// the parts change, and what is used of them stays used.
//
// Memory follows the counters in use, as Memory's does. It is safe for concurrent
// use.
type splits struct {
	counters *localCounters
	pods     Pods
}

func newSplits(pods Pods, now func() time.Time) *splits {
	return &splits{counters: newLocalCounters(now), pods: pods}
}

// take implements local for all limits but those of Concurrency, see splitSlots.
func (s *splits) take(_ context.Context, h *Hit, n int64, _ time.Duration) (int64, Result, error) {
	return s.takeBy("", h, n)
}

// takeBy takes with a token, which holds the slots of Concurrency.
func (s *splits) takeBy(token string, h *Hit, n int64) (int64, Result, error) {
	c := single(Take, h, n)
	defer c.release()
	c.Token = token
	if err := s.do(c); err != nil {
		return 0, Result{}, err
	}
	return c.Granted, c.Results[0], nil
}

// giveBack implements local.
func (s *splits) giveBack(h *Hit, n int64) {
	c := single(Refund, h, n)
	defer c.release()
	_ = s.do(c) // it fails only for hits that take has refused as well
}

// do carries out a call of one hit, with whatever Op, in this pod's part of the
// limit. It fails only with ErrInvalid.
func (s *splits) do(c *Call) error {
	h := &c.Hits[0]
	whole := h.Rule
	mine, err := whole.partOf(s.pods(whole))
	if err != nil {
		return err
	}
	h.Rule = mine
	err = s.counters.do(c)
	h.Rule = whole
	return err
}

// splitSlots are the splits for the slots of one request, which its token holds.
type splitSlots struct {
	splits *splits
	token  string
}

// take implements local.
func (s splitSlots) take(_ context.Context, h *Hit, n int64, _ time.Duration) (int64, Result, error) {
	return s.splits.takeBy(s.token, h, n)
}

// giveBack implements local.
func (s splitSlots) giveBack(h *Hit, _ int64) { s.tell(Refund, h) }

// renew implements keeper.
func (s splitSlots) renew(h *Hit) { s.tell(Renew, h) }

// tell fails only for what take refused as well.
func (s splitSlots) tell(op Op, h *Hit) {
	_ = s.splits.do(&Call{Op: op, Hits: []Hit{*h}, Token: s.token})
}

// part is a rule with the part of another one's limit that one pod has.
type part struct {
	live, place int
	rule        *Rule
}

// partOf returns the rule with the part of the limit that the pod of a place,
// from 0, has to itself among so many live ones. The parts of all places add up
// to the limit, and so do those of a TokenBucket's burst; some are 0 when there
// are more pods than units. The rule remembers the last part that was asked for.
func (r *Rule) partOf(live, place int) (*Rule, error) {
	if live <= 1 {
		return r, nil
	}
	if p := r.part.Load(); p != nil && p.live == live && p.place == place {
		return p.rule, nil
	}
	l := r.limit
	l.Requests, l.Burst = divide(l.Requests, live, place), divide(l.Burst, live, place)
	if l.Burst == 0 && l.Algorithm == policy.TokenBucket {
		l.Requests, l.Burst = 0, 1 // a bucket without room refuses
	}
	rule, err := NewRule(l)
	if err == nil {
		r.part.Store(&part{live: live, place: place, rule: rule})
	}
	return rule, err
}

// divide is what a place gets of n; the first places share the remainder.
func divide(n int64, live, place int) int64 {
	each, rest := n/int64(live), n%int64(live)
	if int64(place) < rest {
		each++
	}
	return each
}
