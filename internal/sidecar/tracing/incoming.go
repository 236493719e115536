package tracing

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// w3c is how a trace goes on from one process to the next: by the headers traceparent
// and tracestate.
var w3c propagation.TraceContext

// HTTP has next's requests traced, as parts of the traces that they come with.
func (t *Tracer) HTTP(next http.Handler) http.Handler {
	if t == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method := knownMethod(r.Method)
		ctx, span := t.tracer.Start(w3c.Extract(r.Context(), propagation.HeaderCarrier(r.Header)), method,
			trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attribute.String("http.request.method", method)))
		defer span.End()
		r, answer := r.WithContext(ctx), &answer{ResponseWriter: w}
		defer func() { answer.describe(span, method, r.Pattern) }()
		next.ServeHTTP(answer, r)
	})
}

// Propagate has next, which passes requests on, tell of the trace that they are part of.
func (t *Tracer) Propagate(next http.Handler) http.Handler {
	if t == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w3c.Inject(r.Context(), propagation.HeaderCarrier(r.Header))
		next.ServeHTTP(w, r)
	})
}

// knownMethod is a method that has a meaning, or one word for all others, which clients
// make up.
func knownMethod(method string) string {
	known := []string{
		http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace,
	}
	if slices.Contains(known, method) {
		return method
	}
	return "_OTHER"
}

// answer is a response whose status is noted.
type answer struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	// Informational ones come before the final one.
	if a.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// describe adds to a span what is known when the request has been answered.
func (a *answer) describe(span trace.Span, method, pattern string) {
	if a.status == 0 {
		a.status = http.StatusOK // as net/http has it
	}
	span.SetAttributes(attribute.Int("http.response.status_code", a.status))
	if _, route, found := strings.Cut(pattern, " "); found {
		span.SetName(method + " " + route)
		span.SetAttributes(attribute.String("http.route", route))
	}
	if a.status >= http.StatusInternalServerError {
		span.SetStatus(otelcodes.Error, "")
	}
}

// GRPC are the options of a server whose calls are traced, as parts of the traces that
// they come with. Health checks are not.
func (t *Tracer) GRPC() []grpc.ServerOption {
	if t == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.UnaryInterceptor(t.intercept)}
}

func (t *Tracer) intercept(ctx context.Context, in any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	method := strings.TrimPrefix(info.FullMethod, "/")
	if strings.HasPrefix(method, "grpc.health.") {
		return next(ctx, in)
	}
	sent, _ := metadata.FromIncomingContext(ctx)
	ctx, span := t.tracer.Start(w3c.Extract(ctx, carrier(sent)), method, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(attribute.String("rpc.system", "grpc"), attribute.String("rpc.method", method)))
	defer span.End()
	out, err := next(ctx, in)
	code := status.Code(err)
	span.SetAttributes(attribute.Int("rpc.grpc.status_code", int(code)))
	if err != nil {
		span.SetStatus(otelcodes.Error, code.String())
	}
	return out, err
}

// carrier reads gRPC's metadata.
type carrier metadata.MD

// Get implements propagation.TextMapCarrier.
func (c carrier) Get(name string) string {
	if values := metadata.MD(c).Get(name); len(values) > 0 {
		return values[0]
	}
	return ""
}

// Set implements propagation.TextMapCarrier. Nobody sets what came in.
func (c carrier) Set(name, value string) { metadata.MD(c).Set(name, value) }

// Keys implements propagation.TextMapCarrier.
func (c carrier) Keys() []string {
	return slices.Collect(maps.Keys(c))
}
