package limiter

import (
	"context"
	"time"
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
