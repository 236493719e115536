package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tallyman-dev/tallyman/internal/testredis"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
	"github.com/tallyman-dev/tallyman/pkg/tallyman/grpclimit"
)

func TestMain(m *testing.M) {
	logging.Disable()
	goleak.VerifyTestMain(m)
}

// limiter counts in a store, by a policy with this spec.
func limiter(t *testing.T, store, spec string) *tallyman.Limiter {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policies.yaml")
	text := "apiVersion: tallyman.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: a}\nspec: {selector: {}, " + spec + "}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := tallyman.New(t.Context(), tallyman.Options{Store: store, PolicyFile: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) }) // some tests have no store to take leave of
	return l
}

// app is a service with a unary call and a stream. The stream says that it runs, and
// ends when it is told to.
type app struct {
	healthpb.UnimplementedHealthServer
	finish chan struct{}
}

func (a *app) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

func (a *app) Watch(_ *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	if err := stream.Send(&healthpb.HealthCheckResponse{}); err != nil {
		return err
	}
	<-a.finish
	return nil
}

// serve has the limiter in front of the app.
func serve(t *testing.T, a grpclimit.Admitter) (healthpb.HealthClient, *app) {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer(
		grpc.UnaryInterceptor(grpclimit.UnaryServerInterceptor(a)), grpc.StreamInterceptor(grpclimit.StreamServerInterceptor(a)))
	behind := &app{finish: make(chan struct{})}
	healthpb.RegisterHealthServer(server, behind)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	conn, err := grpc.NewClient("passthrough:///shop.example", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return healthpb.NewHealthClient(conn), behind
}

const one = `limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog, key: [{header: {name: X-Api-Key}}]}]`

func TestUnaryCalls(t *testing.T) {
	for name, store := range map[string]func() string{
		"memory": func() string { return tallyman.MemoryStore }, "redis": func() string { return testredis.Start(t).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			client, _ := serve(t, limiter(t, store(), one))
			ctx := metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "alice")
			var header, trailer metadata.MD
			if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&header)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{`"x";r=0;t=3600`}, header["ratelimit"]); diff != "" {
				t.Errorf("ratelimit (-want +got):\n%s", diff)
			}
			_, err := client.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Trailer(&trailer))
			checkRefusal(t, err, trailer)
			if _, err := client.Check(metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "bob"), &healthpb.HealthCheckRequest{}); err != nil {
				t.Errorf("another client got %v", err)
			}
		})
	}
}

// checkRefusal wants to be told to come back within the hour.
func checkRefusal(t *testing.T, err error, trailer metadata.MD) {
	t.Helper()
	s := status.Convert(err)
	if s.Code() != codes.ResourceExhausted || len(s.Details()) != 1 {
		t.Fatalf("got %v with %v", err, s.Details())
	}
	info, ok := s.Details()[0].(*errdetails.RetryInfo)
	if wait := info.GetRetryDelay().AsDuration(); !ok || wait < 50*time.Minute || wait > time.Hour {
		t.Errorf("the client is told to wait for %v", wait)
	}
	if len(trailer["retry-after"]) != 1 || len(trailer["ratelimit-policy"]) != 1 {
		t.Errorf("the trailer is %v", trailer)
	}
}

func TestStreams(t *testing.T) {
	client, behind := serve(t, limiter(t, tallyman.MemoryStore, one))
	close(behind.finish)
	stream, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if header, err := stream.Header(); err != nil || len(header["ratelimit"]) != 1 {
		t.Errorf("the header is %v, %v", header, err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Errorf("got %v", err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end", err)
	}
	if stream, err = client.Watch(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	checkRefusal(t, err, stream.Trailer())
}

func TestSlotsAreHeldUntilAStreamEnds(t *testing.T) {
	client, behind := serve(t, limiter(t, tallyman.MemoryStore, `limits: [{name: x, requests: 1, window: 1h, algorithm: Concurrency}]`))
	stream, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("beside a stream, a call got %v", err)
	}
	close(behind.finish)
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("got %v, want the end", err)
	}
	for range 3 {
		if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
			t.Errorf("after the stream, a call got %v", err)
		}
	}
}

// asked is an Admitter that records what it is asked, and always decides the same.
type asked struct {
	decision tallyman.Decision
	requests []tallyman.Request
}

func (a *asked) Admit(_ context.Context, r tallyman.Request) tallyman.Decision {
	a.requests = append(a.requests, r)
	return a.decision
}

func TestPoliciesSeeACall(t *testing.T) {
	a := &asked{decision: tallyman.Decision{Allowed: true}}
	client, _ := serve(t, a)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "alice", "x-api-key", "bob")
	if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	r := a.requests[0]
	if r.Method != "POST" || r.Path != "/grpc.health.v1.Health/Check" || r.Host != "shop.example" || r.RemoteAddr == "" {
		t.Errorf("got %+v", r)
	}
	if diff := cmp.Diff([]string{"alice", "bob"}, r.Header.Values("X-Api-Key")); diff != "" || r.Header.Get("Content-Type") != "application/grpc" {
		t.Errorf("the header is %v", r.Header)
	}
	for name := range r.Header {
		if name[0] == ':' {
			t.Errorf("%s is a header", name)
		}
	}
}

func TestRefusalsTellNothingWhereThePolicySaysSo(t *testing.T) {
	client, _ := serve(t, limiter(t, tallyman.MemoryStore, `response: {headers: None}, `+one))
	var md metadata.MD
	if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}, grpc.Header(&md)); err != nil || len(md["ratelimit"]) > 0 {
		t.Errorf("got %v, %v", md, err)
	}
	_, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}, grpc.Trailer(&md))
	if s := status.Convert(err); s.Code() != codes.ResourceExhausted || len(s.Details()) > 0 || len(md["retry-after"]) > 0 {
		t.Errorf("got %v with %v", err, md)
	}
}

func TestRefusals(t *testing.T) {
	for reason, want := range map[tallyman.Reason]codes.Code{
		tallyman.CostExceedsLimit: codes.ResourceExhausted, tallyman.KeyDenied: codes.ResourceExhausted,
		tallyman.StoreUnavailable: codes.Unavailable, tallyman.BackstopFull: codes.Unavailable,
	} {
		client, _ := serve(t, &asked{decision: tallyman.Decision{Reason: reason, Limit: "x"}})
		_, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{})
		if s := status.Convert(err); s.Code() != want || len(s.Details()) != 0 || s.Message() == "" {
			t.Errorf("%s: got %v with %v", reason, err, s.Details())
		}
	}
}
