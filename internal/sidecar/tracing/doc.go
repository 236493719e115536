// Package tracing traces what a sidecar decides, by OpenTelemetry: a span for each
// request that comes in, one for its decision, and one for the call to the store that
// this took, if it took one. docs/observability.md tells how to turn it on.
//
//	config.go     what the standard OTEL_ variables say
//	variables.go  which of their values are refused
//	tracing.go    spans of decisions and of calls to the store
//	incoming.go   spans of requests by HTTP and by gRPC, and the context they come with
//
// Only this package knows OpenTelemetry. A nil *Tracer is one that is off: it costs a
// comparison.
package tracing
