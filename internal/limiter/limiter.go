package limiter

import (
	"context"
	"errors"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// ErrInvalid means that a call or a limit is outside the bounds that Limit, Hit
// and Call state. Nothing was taken, and no store was asked.
var ErrInvalid = errors.New("invalid")

// Store counts. Implementations are safe for concurrent use.
type Store interface {
	// Do carries out a call and puts the answer into it. The call is the
	// store's until Do returns, and may be used again afterwards.
	//
	// An error other than ErrInvalid means that the outcome is not known: units
	// may have been taken, and the call must not be repeated for the same
	// request.
	Do(ctx context.Context, c *Call) error
}

// Op is what a call asks for.
type Op byte

const (
	// Take decides like requests in one step, and takes the units of those
	// that it grants. Each is granted by all of its counters or charged to none.
	// The slots of Concurrency are held by the call's Token.
	Take Op = iota
	// Peek answers as Take would and takes nothing.
	Peek
	// Refund gives units back, at most those that are counted, or the slots of
	// the Token. With a Token it happens once.
	Refund
	// Charge takes the units of requests that were let pass already, as far as
	// there are any: a count does not exceed its limit. With a Token it happens
	// once.
	Charge
	// Reserve is a Take of one request whose cost is an estimate, and which is
	// remembered by its Token for TokenTTL.
	Reserve
	// Settle corrects a reservation: the hits are those that were reserved, with
	// the real costs. What was too much is given back; what is missing is taken
	// as by Charge; slots stay. A reservation that has expired, or was settled, is
	// left as it is: Granted is 0.
	Settle
	// Renew has the slots of a Token last another window. Granted is 0 when one
	// of them had ended.
	Renew
	// Reset makes counters what they are before their first request: all units are
	// there again. Slots of Concurrency are held no more, though what holds them goes
	// on.
	Reset
)

// Call is a question to a store and, after Do, its answer.
type Call struct {
	Op Op
	// Hits are what one request asks of the limits that it meets. They have
	// different keys; there are at most 255.
	Hits []Hit
	// Count of like requests, 1..2^53-1; 0 means 1. Of many, as many are granted
	// as fit.
	Count int64
	// Token tells one call from all others, see Op. It has at most 200 bytes,
	// and is part of a key in Redis.
	Token string
	// TokenTTL is how long a Token is remembered, up to a day; 0 means
	// DefaultTokenTTL.
	TokenTTL time.Duration
	// Timeout bounds the wait for the store; 0 means DefaultTimeout.
	Timeout time.Duration

	// Granted is how many of Count were or, for a Peek, would be granted. For a
	// Refund and a Charge it is how many there were units for.
	Granted int64
	// Results are in the order of the hits, and tell how the last of the
	// requests fared.
	Results []Result
	// Failure is why the store did not decide, where results are Degraded.
	Failure error

	// wantStates asks for states: those of the counters after the call.
	wantStates bool
	states     []state
	// done says that a call with a Token was carried out now, and not before.
	done bool
	// excess is what a Charge of a TokenBucket took beyond the units of Granted,
	// in µs: it fills the bucket up.
	excess int64
}

const (
	// DefaultTimeout bounds the wait for a store where a call does not.
	DefaultTimeout = 500 * time.Millisecond
	// DefaultTokenTTL is how long a token is remembered.
	DefaultTokenTTL = 10 * time.Minute
)

// Hit asks one counter for one request.
type Hit struct {
	Rule *Rule
	// Key of the counter, as CounterKey makes it.
	Key string
	// Cost in units of the limit, 0 or more. A cost of 0 is always admitted,
	// except by a limit of 0, and creates no key.
	Cost int64
	// Shadow hits never stand in the way of the others: they are counted, all
	// together or not at all, when the others are admitted.
	Shadow bool
}

// Reason says why a hit was refused; it is empty when the hit is allowed.
type Reason string

const (
	// LimitExceeded means that the units are used up for now.
	LimitExceeded Reason = "LimitExceeded"
	// CostExceedsLimit means that the cost can never be admitted: there is no
	// time at which to try again. A limit of 0 refuses every cost so.
	CostExceedsLimit Reason = "CostExceedsLimit"
)

// Result is one counter's answer.
type Result struct {
	// Allowed says whether this counter has room for the hit. Units are taken
	// only when every hit of its group (shadow or not) is allowed.
	Allowed bool
	Reason  Reason
	// Remaining units after the call, 0..limit (0..burst for a TokenBucket).
	Remaining int64
	// RetryAfter is the time until the same hit can be admitted at the
	// earliest if nobody else takes units; 0 when allowed, and when it can
	// never be. It is exact to the microsecond: the hit is admitted then, and
	// not one microsecond earlier. Only for Concurrency it is a guess.
	RetryAfter time.Duration
	// ResetAfter is the time until the counter is back at its full limit.
	ResetAfter time.Duration
	// Degraded says that the store did not answer, so that the limit's failure
	// policy decided.
	Degraded bool
	// Unknown says that the counter was not asked: it is not known what remains.
	// Another limit had refused, or the store did not answer.
	Unknown bool
}

// timeout is how long the call may wait for a store.
func (c *Call) timeout() time.Duration {
	if c.Timeout <= 0 {
		return DefaultTimeout
	}
	return c.Timeout
}

// count is how many requests a call is about.
func (c *Call) count() int64 { return max(1, c.Count) }

// maxWindow is above the longest duration that GEP-2257 can write, 45.7 years.
// Twice that from now is still an exact number of microseconds in Lua.
const maxWindow = 50 * 365 * 24 * time.Hour

// maxCount bounds Count: sums of so many costs are still exact in Lua.
const maxCount = policy.MaxInteger
