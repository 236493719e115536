package tallyman

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tallyman-dev/tallyman/internal/limiter"
)

// Reserve decides a request as Admit does, for costs that are known late, such as
// the tokens of a language model's answer: what the limits' cost says is an
// estimate, which Settle corrects by the token. The token is the caller's, differs
// from that of every other request, and has 1 to 200 bytes. After ttl, at most a
// day, the estimate stands.
//
// Whatever a limit's distribution, a reservation is made in the shared count; only
// that of a Split is this process's own, and has to be settled by it. One that the
// store did not answer, so that the decision is degraded, cannot be settled.
func (l *Limiter) Reserve(ctx context.Context, r Request, token string, ttl time.Duration) Decision {
	d := l.decide(ctx, r, question{op: limiter.Reserve, token: token, tokenTTL: ttl})
	l.observe(ctx, d)
	return d
}

// ErrNotReserved means that there is nothing to settle: the request was refused,
// its reservation has expired, or it was settled before.
var ErrNotReserved = errors.New("there is no such reservation")

// Settle makes cost units, in every limit that the request meets, of what Reserve
// has estimated: what was too much is given back, and what is missing is taken as
// far as there is any. It settles once, see ErrNotReserved; after any other error
// the estimate stands.
func (l *Limiter) Settle(ctx context.Context, r Request, token string, cost int64) error {
	m := l.meetCounted(&r)
	defer m.end()
	if len(m.call.Hits) == 0 {
		return nil
	}
	for i := range m.call.Hits {
		m.call.Hits[i].Cost = cost
	}
	if err := l.do(ctx, m, question{op: limiter.Settle, token: token}); err != nil {
		return fmt.Errorf("settle a reservation: %w", err)
	}
	if m.call.Granted == 0 {
		return ErrNotReserved
	}
	return nil
}

// Refund gives back what Admit charged for a request that did not happen after
// all, in every limit that it meets, at most what is counted there. With a token,
// of up to 200 bytes, it happens once within ten minutes, however often it is
// called.
func (l *Limiter) Refund(ctx context.Context, r Request, token string) error {
	m := l.meetCounted(&r)
	defer m.end()
	if len(m.call.Hits) == 0 {
		return nil
	}
	if err := l.do(ctx, m, question{op: limiter.Refund, token: token}); err != nil {
		return fmt.Errorf("refund a request: %w", err)
	}
	return nil
}

// meetCounted meets what Admit counts the request by, which is nothing for one that
// is exempt.
func (l *Limiter) meetCounted(r *Request) *meeting {
	m := newMeeting()
	if !l.isExempt(r) {
		l.meet(m, l.current.Load(), r)
	}
	return m
}
