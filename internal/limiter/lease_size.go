package limiter

import (
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

const (
	// lifetime bounds how long units are at hand while nothing is spent of them:
	// then they go back.
	lifetime = 5 * time.Second
	// ahead is how long what is taken ahead of need should last, and how long a
	// refusal is remembered.
	ahead = time.Second
	// shortestLife is below what taking units ahead of need is worth: units that
	// live for a few round trips are given back more often than spent.
	shortestLife = 10 * time.Millisecond
	// paceOver is the shortest time over which a pace is measured.
	paceOver = 10 * time.Millisecond
)

// life is how long units of a rule stay at hand while none is spent. A quarter of
// a window keeps what is counted close to what is admitted.
func (r *Rule) life() time.Duration {
	if r.limit.Calendar != nil {
		return lifetime // the shortest of calendars' windows is a minute
	}
	return min(lifetime, r.limit.Window/4)
}

// idle is how many units may lie idle in each of so many pods, for all of them
// to stay within the rule's share. Where it is 0, the shared count is asked for
// every request.
func (r *Rule) idle(live int64) int64 {
	if r.life() < shortestLife {
		return 0
	}
	idle := min(r.limit.Requests, r.Capacity()) * int64(r.distribution.MaxIdlePercent) / 100 / live
	return min(idle, r.together(), maxHand)
}

// lasting says until when granted units may be spent, and when the window ends in
// which they were counted. The shared count decided after the question was sent,
// so that by our clock its window ends no earlier than this.
func lasting(q question, c *Call) (until, border moment) {
	border = never
	switch q.rule.limit.Algorithm {
	case policy.FixedWindow:
		border = q.sent + c.Results[0].ResetAfter
	case policy.SlidingWindow: // says when the next window ends
		border = q.sent + c.Results[0].ResetAfter - q.rule.limit.Window
	}
	return min(border, q.sent+q.rule.life()), border
}

// pace is the rate at which a lease's units are spent.
type pace struct {
	perSecond float64
	// spent is since then; run is since nothing was spent for a while.
	spent, run int64
	since      moment
}

// add measures the pace: at once where it grows, and over a while where it
// falls.
func (p *pace) add(units int64, now moment) {
	p.spent += units
	p.run += units
	elapsed := now - p.since
	rate := float64(p.spent) / max(elapsed, paceOver).Seconds()
	if elapsed < paceOver {
		p.perSecond = max(p.perSecond, rate)
		return
	}
	if elapsed >= ahead {
		p.run = units
	}
	p.perSecond, p.spent, p.since = rate, 0, now
}

// want is how many units are wanted at hand: what is spent within their life,
// and no more than was spent already, so that a few requests that come at once
// are no pace. A hundredth of what may lie idle is never too much, and spares the
// keys of a large limit most of their questions. One unit would be as often given
// back as spent.
func (p *pace) want(life time.Duration, idle int64) int64 {
	n := max(min(int64(p.perSecond*life.Seconds()), p.run), idle/100)
	if n < 2 {
		return 0
	}
	return n
}

// scarce is how many units are wanted at hand when the shared count has little
// left, so that hardly any lie idle where others want them.
func (p *pace) scarce() int64 { return min(share, p.want(100*time.Millisecond, 0)) }

const (
	// share is the units that are worth a question to a count that has too few
	// for everybody.
	share = 8
	// The bounds of a pause between two such questions.
	shortestPause, longestPause = 16 * time.Millisecond, 250 * time.Millisecond
)

// thirst is how often in a row the shared count had too little.
type thirst struct {
	// doublings of the pause: others want more than the pods that we know of.
	doublings int
}

// pause is how long the shared count is left alone after it has granted too
// little, so that a share worth asking for gathers for each live pod. It is no
// longer than it takes to gain a quarter of the limit, so that nothing is lost.
// Where no unit comes sooner, it lasts until there is one, or until others may
// have given back theirs.
func (t *thirst) pause(r *Rule, live, granted int64, retryAfter time.Duration) time.Duration {
	switch {
	case granted < share/2:
		t.doublings = min(t.doublings+1, 8)
	case granted >= 2*share:
		t.doublings = max(t.doublings-1, 0)
	}
	if _, fixed := r.algorithm.(fixedWindow); fixed {
		return min(retryAfter, ahead)
	}
	unit := float64(r.limit.Window) / float64(r.limit.Requests)
	gathering := time.Duration(min(share*float64(live)*unit*float64(int64(1)<<t.doublings), float64(longestPause)))
	quarter := time.Duration(min(float64(r.Capacity())*unit/4, float64(longestPause)))
	return max(min(max(gathering, shortestPause), quarter), min(retryAfter, ahead))
}
