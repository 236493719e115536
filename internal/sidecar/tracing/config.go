package tracing

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// serviceName is ours where OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say nothing.
const serviceName = "tallyman-sidecar"

// FromEnv returns a tracer as the environment wants it, which the caller shuts down; nil
// is none. It is off unless the standard variables of OpenTelemetry name a place to send
// spans to, by OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or
// OTEL_TRACES_EXPORTER=otlp. Those about sampling, batches, headers, TLS and the
// resource are read as well.
//
// A collector that is down is no error: spans are dropped, and failed is told of each
// failure, of which there can be many. It must be safe for concurrent use. What else
// OpenTelemetry has to say goes to the log.
func FromEnv(ctx context.Context, namespace, pod string, log *slog.Logger, failed func(error)) (*Tracer, error) {
	on, err := isOn()
	if err != nil || !on {
		return nil, err
	}
	if err := checkVariables(); err != nil {
		return nil, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(failed))
	otel.SetLogger(logr.FromSlogHandler(log.Handler()))
	exporter, err := newExporter(ctx)
	if err != nil {
		return nil, err
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(
			attribute.String("service.name", serviceName),
			attribute.String("k8s.namespace.name", namespace), attribute.String("k8s.pod.name", pod),
		),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return newTracer(sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))), nil
}

func isOn() (bool, error) {
	if strings.EqualFold(variable("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	switch name := variable("OTEL_TRACES_EXPORTER"); name {
	case "none":
		return false, nil
	case "otlp":
		return true, nil
	case "":
		return cmp.Or(variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), variable("OTEL_EXPORTER_OTLP_ENDPOINT")) != "", nil
	default:
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER is %.80q: it must be otlp or none", name)
	}
}

// newExporter sends spans by OTLP. It connects when there is something to send.
func newExporter(ctx context.Context) (exporter sdktrace.SpanExporter, err error) {
	switch protocol := cmp.Or(variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), variable("OTEL_EXPORTER_OTLP_PROTOCOL")); protocol {
	case "", "http/protobuf": // the standard's default
		exporter, err = otlptracehttp.New(ctx)
	case "grpc":
		exporter, err = otlptracegrpc.New(ctx)
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %.80q: it must be http/protobuf or grpc", protocol)
	}
	if err != nil {
		return nil, fmt.Errorf("send spans as the OTEL_EXPORTER_OTLP_ variables say: %w", err)
	}
	return exporter, nil
}
