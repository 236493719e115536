package sidecar

import (
	"cmp"
	"context"
	"encoding/hex"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// collector is one of traces, which receives spans by OTLP over gRPC.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer
	url string

	mu    sync.Mutex
	spans []*tracepb.Span
	about map[string]string // the resource that they are of
}

func startCollector(t *testing.T) *collector {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, server := &collector{url: "http://" + listener.Addr().String()}, grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(server, c)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return c
}

// Export implements collectorpb.TraceServiceServer.
func (c *collector) Export(_ context.Context, in *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range in.GetResourceSpans() {
		c.about = told(of.GetResource().GetAttributes())
		for _, scope := range of.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

// of are the spans of a trace, in the order in which they began.
func (c *collector) of(trace string) []*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	spans := slices.DeleteFunc(slices.Clone(c.spans), func(s *tracepb.Span) bool { return hex.EncodeToString(s.GetTraceId()) != trace })
	slices.SortFunc(spans, func(a, b *tracepb.Span) int { return cmp.Compare(a.GetStartTimeUnixNano(), b.GetStartTimeUnixNano()) })
	return spans
}

// told are attributes by name.
func told(attributes []*commonpb.KeyValue) map[string]string {
	all := map[string]string{}
	for _, a := range attributes {
		value := a.GetValue().GetStringValue()
		for _, one := range a.GetValue().GetArrayValue().GetValues() {
			value += one.GetStringValue() + " "
		}
		all[a.GetKey()] = value
	}
	return all
}

const (
	refusedTrace  = "0af7651916cd43dd8448eb211c80319c"
	admittedTrace = "0af7651916cd43dd8448eb211c80319d"
	envoyTrace    = "0af7651916cd43dd8448eb211c80319e"
	parentSpan    = "b7ad6b7169203331"
)

// A request that comes with a trace is part of it: it has a span of its own, with one
// for the decision, with one for the call to Redis. The app goes on with the trace.
func TestRequestsAreTracedWhenTheEnvironmentSaysSo(t *testing.T) {
	c := startCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.url)
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
	parents := make(chan string, 1)
	app := serveHTTP(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { parents <- r.Header.Get("Traceparent") }))
	p := run(t, []string{"proxy", "Envoy gRPC"}, "--store", testredis.Start(t).URL(),
		"--policy-file", policyFile(t, `limits: [{name: x, requests: 1, window: 1h, key: [{header: {name: X-Api-Key}}]}]`),
		"--upstream", app.URL, "--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0", "--pod", "orders-1")

	for _, trace := range []string{admittedTrace, refusedTrace} {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", p.urls["proxy"]+"/secret?path", nil)
		r.Header.Set("Traceparent", "00-"+trace+"-"+parentSpan+"-01")
		r.Header.Set("X-Api-Key", "secret")
		resp, err := client(t, false).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	askRateLimitService(t, p, "00-"+envoyTrace+"-"+parentSpan+"-01")
	if code := p.stop(t); code != 0 { // all that is left is sent
		t.Fatalf("ended with %d", code)
	}

	admitted, refused, byEnvoy := c.of(admittedTrace), c.of(refusedTrace), c.of(envoyTrace)
	for name, spans := range map[string][]*tracepb.Span{"admitted": admitted, "refused": refused, "by Envoy": byEnvoy} {
		if len(spans) != 3 || hex.EncodeToString(spans[0].GetParentSpanId()) != parentSpan ||
			!slices.Equal(spans[1].GetParentSpanId(), spans[0].GetSpanId()) || !slices.Equal(spans[2].GetParentSpanId(), spans[1].GetSpanId()) {
			t.Fatalf("%s: want a span in a span in a span, got %v", name, spans)
		}
		if spans[1].GetName() != "tallyman.decide" || spans[2].GetName() != "tallyman.store" {
			t.Errorf("%s: got %v", name, spans)
		}
		for _, span := range spans {
			if strings.Contains(span.String(), "secret") {
				t.Errorf("%s: a span tells of the request: %v", name, span)
			}
		}
	}
	if admitted[0].GetName() != "GET" || byEnvoy[0].GetName() != "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" {
		t.Errorf("the requests' spans are %s and %s", admitted[0].GetName(), byEnvoy[0].GetName())
	}
	if got := <-parents; got != "00-"+admittedTrace+"-"+hex.EncodeToString(admitted[0].GetSpanId())+"-01" {
		t.Errorf("the app was told %q", got)
	}
	decision := told(refused[1].GetAttributes())
	for name, want := range map[string]string{
		"tallyman.way": "proxy", "tallyman.outcome": "refused", "tallyman.reason": "LimitExceeded",
		"tallyman.policy": "a", "tallyman.limit": "x", "tallyman.limits": "a/x ",
	} {
		if decision[name] != want {
			t.Errorf("%s is %q, want %q", name, decision[name], want)
		}
	}
	if got := told(admitted[1].GetAttributes()); got["tallyman.outcome"] != "admitted" || got["tallyman.policy"] != "" {
		t.Errorf("an admitted request has %v", got)
	}
	if c.about["service.name"] != "tallyman-sidecar" || c.about["k8s.pod.name"] != "orders-1" || c.about["deployment.environment.name"] != "test" {
		t.Errorf("the spans are of %v", c.about)
	}
}

func askRateLimitService(t *testing.T, p *process, traceparent string) {
	t.Helper()
	conn, err := grpc.NewClient(strings.TrimPrefix(p.urls["Envoy gRPC"], "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = rlspb.NewRateLimitServiceClient(conn).ShouldRateLimit(metadata.AppendToOutgoingContext(t.Context(), "traceparent", traceparent),
		&rlspb.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimitpb.RateLimitDescriptor{
			{Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: "x-api-key", Value: "other"}}},
		}})
	if err != nil {
		t.Fatal(err)
	}
}
