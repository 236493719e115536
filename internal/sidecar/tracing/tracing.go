package tracing

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// Tracer makes spans and sends them. It is safe for concurrent use, and nil is one
// that is off. Spans have names of policies and limits, and words of ours: of a request
// they have the method and the status, and never a path, a header, a key or an address.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

func newTracer(p *sdktrace.TracerProvider) *Tracer {
	return &Tracer{p, p.Tracer("github.com/tallyman-dev/tallyman")}
}

// Shutdown sends what has not been sent, within the context, and ends what runs in the
// background.
func (t *Tracer) Shutdown(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// DecisionSpan is one of a decision that is being made; the zero value is none.
type DecisionSpan struct{ span trace.Span }

// StartDecision begins the span of a decision about what came in by a way. The context
// is that to decide in.
func (t *Tracer) StartDecision(ctx context.Context, way string) (context.Context, DecisionSpan) {
	if t == nil {
		return ctx, DecisionSpan{}
	}
	ctx, span := t.tracer.Start(ctx, "tallyman.decide", trace.WithAttributes(attribute.String("tallyman.way", way)))
	return ctx, DecisionSpan{span}
}

// End ends the span with what was decided.
func (s DecisionSpan) End(d tallyman.Decision) {
	if s.span == nil {
		return
	}
	if s.span.IsRecording() {
		s.span.SetAttributes(attributes(d)...)
	}
	s.span.End()
}

func attributes(d tallyman.Decision) []attribute.KeyValue {
	outcome := "admitted"
	if !d.Allowed {
		outcome = "refused"
	}
	all := []attribute.KeyValue{attribute.String("tallyman.outcome", outcome), attribute.Bool("tallyman.degraded", d.Degraded)}
	if d.Reason != "" {
		all = append(all, attribute.String("tallyman.reason", string(d.Reason)))
	}
	if !d.Allowed {
		all = append(all, attribute.String("tallyman.policy", d.Policy), attribute.String("tallyman.limit", d.Limit))
	}
	met := make([]string, len(d.Limits))
	for i := range d.Limits {
		met[i] = d.Limits[i].Policy + "/" + d.Limits[i].Limit
	}
	return append(all, attribute.StringSlice("tallyman.limits", met))
}

// StoreCalled makes a span of a call to the store that has just ended, if it was made
// for a request that is traced.
func (t *Tracer) StoreCalled(ctx context.Context, took time.Duration, err error) {
	if t == nil || !trace.SpanFromContext(ctx).IsRecording() {
		return
	}
	now := time.Now()
	_, span := t.tracer.Start(ctx, "tallyman.store", trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(now.Add(-took)))
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End(trace.WithTimestamp(now))
}
