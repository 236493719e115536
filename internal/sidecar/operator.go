package sidecar

import (
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
