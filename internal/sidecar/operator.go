package sidecar

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"

	"github.com/tallyman-dev/tallyman/internal/operator"
	"github.com/tallyman-dev/tallyman/internal/operator/guard"
	"github.com/tallyman-dev/tallyman/internal/respond"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// newOperatorAPI serves the kubectl plugin, see package operator.
func newOperatorAPI(l *tallyman.Limiter, log *slog.Logger) http.Handler {
	return guard.New(map[string]http.Handler{
		"POST " + operator.PathExplain: explainHandler(l),
		"GET " + operator.PathTop:      topHandler(l),
		"POST " + operator.PathReset:   resetHandler(l, log),
		"POST " + operator.PathRefund:  refundUnitsHandler(l, log),
	})
}

func explainHandler(l *tallyman.Limiter) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		// A check is an operator.Request, in which headers may be strings as well.
		var q checkRequest
		request, ok := read(w, r, &q)
		if !ok {
			return
		}
		request.RemoteAddr = q.ClientIP // as if it came straight, as probes do
		respond.JSON(w, explanation(l.Explain(r.Context(), request)))
	}
}

func explanation(e tallyman.Explanation) operator.Explanation {
	d := &e.Decision
	out := operator.Explanation{
		Allowed: d.Allowed, Reason: string(d.Reason), Policy: d.Policy, Limit: d.Limit,
		RetryAfterMs: milliseconds(d.RetryAfter), Degraded: d.Degraded, Exempt: e.Exempt,
		Limits: make([]operator.LimitExplanation, len(e.Limits)),
	}
	for i := range e.Limits {
		out.Limits[i] = limitExplanation(&e.Limits[i])
	}
	return out
}

func limitExplanation(l *tallyman.LimitExplanation) operator.LimitExplanation {
	d := &l.Decision
	out := operator.LimitExplanation{
		Policy: d.Policy, Generation: l.Generation, Limit: d.Limit, Shadow: d.Shadow,
		Applies: l.Applies, Why: l.Why, Key: l.Counter.Key, RedisKey: l.RedisKey, Cost: l.Cost,
		Algorithm: l.Algorithm, Distribution: l.Distribution, FailurePolicy: l.FailurePolicy,
		Requests: d.Requests, Capacity: d.Capacity, WindowMs: milliseconds(d.Window),
		Allowed: d.Allowed, Reason: string(d.Reason), RetryAfterMs: milliseconds(d.RetryAfter),
	}
	if d.Counted {
		out.Remaining, out.ResetAfterMs = new(d.Remaining), new(milliseconds(d.ResetAfter))
	}
	return out
}

func topHandler(l *tallyman.Limiter) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		respond.JSON(w, top(l.Top(operator.TopPatience), r.URL.Query().Get("reveal") == "true"))
	}
}

func top(t tallyman.Top, reveal bool) operator.Top {
	out := operator.Top{SinceMs: t.Since.Milliseconds(), Limits: make([]operator.TopLimit, len(t.Limits))}
	for i, l := range t.Limits {
		out.Limits[i] = operator.TopLimit{
			Policy: l.Policy, Limit: l.Limit, Shadow: l.Shadow, Admitted: l.Admitted, Refused: l.Refused, Others: l.Others,
		}
		for _, k := range l.Keys {
			key := operator.TopKey{Key: k.Text, Admitted: k.Admitted, Refused: k.Refused}
			if reveal {
				key.Key = k.Values
			}
			out.Limits[i].Keys = append(out.Limits[i].Keys, key)
		}
	}
	return out
}

func resetHandler(l *tallyman.Limiter, log *slog.Logger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, ok := readChange(w, r)
		switch {
		case !ok:
		case c.Units != 0:
			respond.Problem(w, http.StatusBadRequest, "units must be left out: a reset gives back all")
		default:
			state, err := l.Reset(r.Context(), counterOf(c))
			answerChange(w, "Reset a counter", c, state, err, log)
		}
	}
}

func refundUnitsHandler(l *tallyman.Limiter, log *slog.Logger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, ok := readChange(w, r)
		switch {
		case !ok:
		case c.Units < 1:
			respond.Problem(w, http.StatusBadRequest, "units must be 1 or more: those to give back")
		default:
			state, err := l.RefundUnits(r.Context(), counterOf(c), c.Units)
			answerChange(w, "Refunded units of a counter", c, state, err, log.With("units", state.Units))
		}
	}
}

// readChange reads a change. What is none it answers, and ok is false.
func readChange(w http.ResponseWriter, r *http.Request) (c operator.Change, ok bool) {
	err := decode(bounded(w, r), &c)
	if err != nil {
		refuseBody(w, err)
	}
	return c, err == nil
}

func counterOf(c operator.Change) tallyman.Counter {
	return tallyman.Counter{Policy: c.Policy, Limit: c.Limit, Key: c.Key}
}

// answerChange tells what has become of a counter, and logs it: who administers a
// cluster is to see that counts were changed by hand. The counter is logged by a hash
// of its name, which has clients' addresses in it.
func answerChange(w http.ResponseWriter, done string, c operator.Change, state tallyman.CounterState, err error, log *slog.Logger) {
	switch {
	case errors.Is(err, tallyman.ErrNoCounter):
		respond.Problem(w, http.StatusNotFound, err.Error())
	case err != nil: // which is not told, since it can name the store
		respond.Problem(w, http.StatusServiceUnavailable, "the store did not answer in time: the counter may have been changed, or not")
	default:
		hash := sha256.Sum256([]byte(state.RedisKey))
		log.Info(done, "policy", c.Policy, "limit", c.Limit, "counter", hex.EncodeToString(hash[:16]))
		respond.JSON(w, operator.Changed{RedisKey: state.RedisKey, Units: state.Units, Remaining: state.Remaining})
	}
}
