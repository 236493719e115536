package sidecar

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/tallyman-dev/tallyman/internal/sidecar/tracing"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
	"github.com/tallyman-dev/tallyman/pkg/tallyman/httplimit"
)

// door is one way in to the limiter: it decides as that does, and what it decides is
// counted by the way, timed, traced and, when it is a refusal, logged now and then.
// What charges nobody, such as a peek, passes through it unseen.
type door struct {
	*tallyman.Limiter
	way      *wayMetrics
	tracer   *tracing.Tracer
	refusals *refusalLog
}

// doors are all ways in.
type doors struct{ proxy, check, forwardAuth, rateLimit, extAuthz *door }

func newDoors(l *tallyman.Limiter, m *metrics, tracer *tracing.Tracer, log *slog.Logger) doors {
	refusals := newRefusalLog(log, l)
	door := func(way string) *door { return &door{l, m.ways[way], tracer, refusals} }
	return doors{
		proxy: door(proxyWay), check: door(checkWay), forwardAuth: door(forwardAuthWay),
		rateLimit: door(rateLimitWay), extAuthz: door(extAuthzWay),
	}
}

// before has a proxy's requests decided before they go on, and traced on their whole
// way.
func (d *door) before(proxy http.Handler) http.Handler {
	return d.tracer.HTTP(httplimit.Middleware(d)(d.tracer.Propagate(proxy)))
}

// Admit is tallyman.Limiter's.
func (d *door) Admit(ctx context.Context, r tallyman.Request) tallyman.Decision {
	ctx, span := d.tracer.StartDecision(ctx, d.way.name)
	began := time.Now()
	decision := d.Limiter.Admit(ctx, r)
	d.decided(decision, began, span)
	return decision
}

// AdmitAll is tallyman.Limiter's. All requests together are one decision.
func (d *door) AdmitAll(ctx context.Context, rs []tallyman.Request) (all tallyman.Decision, each []tallyman.Decision) {
	ctx, span := d.tracer.StartDecision(ctx, d.way.name)
	began := time.Now()
	all, each = d.Limiter.AdmitAll(ctx, rs)
	d.decided(all, began, span)
	return all, each
}

// Reserve is tallyman.Limiter's.
func (d *door) Reserve(ctx context.Context, r tallyman.Request, token string, ttl time.Duration) tallyman.Decision {
	ctx, span := d.tracer.StartDecision(ctx, d.way.name)
	began := time.Now()
	decision := d.Limiter.Reserve(ctx, r, token, ttl)
	d.decided(decision, began, span)
	return decision
}

func (d *door) decided(decision tallyman.Decision, began time.Time, span tracing.DecisionSpan) {
	now := time.Now()
	d.way.decided(decision, now.Sub(began))
	span.End(decision)
	if !decision.Allowed {
		d.refusals.note(d.way.name, decision, now)
	}
}
