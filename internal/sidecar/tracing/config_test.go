package tracing

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ignore(error) {}

var silent = slog.New(slog.DiscardHandler)

// OpenTelemetry would log these values, go on with others, or fail.
func TestVariablesThatAreNotValidAreRefusedWithoutTheirValues(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "s3cret:4318", "a URL such as"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://%zz:s3cret@collector", "a URL such as"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "://s3cret", "a URL such as"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://", "a URL such as"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "s3cret", "name=value pairs"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret%zz", "name=value pairs"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "a=b,my s3cret=b", "name=value pairs"},
		{"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "=s3cret", "name=value pairs"},
		{"OTEL_BSP_MAX_QUEUE_SIZE", "-5", "from 1 to"},
		{"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "999999999999", "from 1 to"},
		{"OTEL_BSP_SCHEDULE_DELAY", "5s3cret", "from 1 to"},
		{"OTEL_BSP_EXPORT_TIMEOUT", "0", "from 1 to"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("OTEL_TRACES_EXPORTER", "otlp")
			t.Setenv(c.name, c.value)
			tracer, err := FromEnv(t.Context(), "shop", "orders-1", silent, ignore)
			if tracer != nil || err == nil || !strings.HasPrefix(err.Error(), c.name+" must be ") ||
				!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%q: got %v, %v", c.value, tracer, err)
			}
		})
	}
}

func TestTracingFollowsTheStandardVariables(t *testing.T) {
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for name, tc := range map[string]struct {
		env map[string]string
		on  bool
		err string
	}{
		"nothing is set":    {nil, false, ""},
		"an endpoint":       {map[string]string{endpoint: "http://127.0.0.1:4318"}, true, ""},
		"one for traces":    {map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, true, ""},
		"the exporter":      {map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, true, ""},
		"by gRPC":           {map[string]string{endpoint: "http://127.0.0.1:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, true, ""},
		"an empty endpoint": {map[string]string{endpoint: " "}, false, ""},
		"headers and batches": {map[string]string{
			endpoint: "https://127.0.0.1:4318", "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20abc , X-Tenant=a=b", "OTEL_BSP_MAX_QUEUE_SIZE": "100",
		}, true, ""},
		"disabled":            {map[string]string{endpoint: "http://127.0.0.1:4318", "OTEL_SDK_DISABLED": "true"}, false, ""},
		"no exporter":         {map[string]string{endpoint: "http://127.0.0.1:4318", "OTEL_TRACES_EXPORTER": "none"}, false, ""},
		"another exporter":    {map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, false, `OTEL_TRACES_EXPORTER is "zipkin": it must be otlp or none`},
		"another protocol":    {map[string]string{endpoint: "http://127.0.0.1:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, false, "must be http/protobuf or grpc"},
		"attributes in ruins": {map[string]string{endpoint: "http://127.0.0.1:4318", "OTEL_RESOURCE_ATTRIBUTES": "a"}, false, "OTEL_RESOURCE_ATTRIBUTES"},
	} {
		t.Run(name, func(t *testing.T) {
			for name, value := range tc.env {
				t.Setenv(name, value)
			}
			tracer, err := FromEnv(t.Context(), "shop", "orders-1", silent, ignore)
			if (tracer != nil) != tc.on || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("got %v, %v", tracer, err)
			}
			if err := tracer.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
}

// Without tracing requests go the way that they went, and allocate nothing on it.
func TestATracerThatIsOffCostsNothing(t *testing.T) {
	var off *Tracer
	next := http.NewServeMux()
	if off.HTTP(next) != http.Handler(next) || off.Propagate(next) != http.Handler(next) || off.GRPC() != nil {
		t.Error("something is in the requests' way")
	}
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		decideIn, span := off.StartDecision(ctx, "proxy")
		off.StoreCalled(decideIn, 0, nil)
		span.span = nil
	}); n != 0 {
		t.Errorf("a decision allocates %v times", n)
	}
}

// A collector that is down is told of, and keeps nobody from their answer.
func TestACollectorThatIsDownIsToldOf(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "100") // ms, in which it is tried again
	server.Close()
	var failures atomic.Int64
	tracer, err := FromEnv(t.Context(), "shop", "orders-1", silent, func(error) { failures.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	tracer.HTTP(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })).
		ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if w.Code != http.StatusNoContent {
		t.Errorf("the answer is %d", w.Code)
	}
	if err := tracer.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if n := failures.Load(); n != 1 {
		t.Errorf("%d failures are told of, want 1", n)
	}
}
