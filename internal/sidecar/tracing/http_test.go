package tracing

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// By the standard's default protocol, and of requests that the standard's sampler
// chooses: those whose caller traces them.
func TestSampledSpansAreSentByHTTP(t *testing.T) {
	var mu sync.Mutex
	var names []string
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var sent collectorpb.ExportTraceServiceRequest
		if err := proto.Unmarshal(body, &sent); err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, span := range sent.GetResourceSpans()[0].GetScopeSpans()[0].GetSpans() {
			names = append(names, span.GetName())
		}
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
	tracer, err := FromEnv(t.Context(), "shop", "orders-1", silent, ignore)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/orders/{id}", func(_ http.ResponseWriter, r *http.Request) {
		tracer.StoreCalled(r.Context(), 0, nil)
	})
	for _, flags := range []string{"00", "01"} {
		for _, method := range []string{"GET", "FROB"} {
			r := httptest.NewRequest(method, "/v1/orders/secret", nil)
			r.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"+flags)
			tracer.HTTP(mux).ServeHTTP(httptest.NewRecorder(), r)
		}
	}
	if err := tracer.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"tallyman.store", "GET /v1/orders/{id}", "_OTHER"}; !slices.Equal(names, want) {
		t.Errorf("the spans are %q, want %q", names, want)
	}
}
