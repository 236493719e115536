package envoy

import (
	"context"
	"errors"
	"net"
	"testing"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

func TestHealthFollowsTheLimiterAndTheDrain(t *testing.T) {
	serving := false
	h := &health{serving: func() bool { return serving }}
	for _, want := range []healthpb.HealthCheckResponse_ServingStatus{healthpb.HealthCheckResponse_NOT_SERVING, healthpb.HealthCheckResponse_SERVING} {
		for _, service := range []string{"", "envoy.service.ratelimit.v3.RateLimitService", "envoy.service.auth.v3.Authorization"} {
			out, err := h.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
			if err != nil || out.GetStatus() != want {
				t.Errorf("%q is %v, %v, want %v", service, out, err, want)
			}
		}
		serving = true
	}
	if _, err := h.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
		t.Errorf("got %v", err)
	}
}

func TestHealthOfAServerThatDrains(t *testing.T) {
	ctx, drain := context.WithCancel(t.Context())
	defer drain()
	listener := bufconn.Listen(1 << 16)
	l := limiterOn(t, tallyman.Options{}, ten)
	server := NewServer(ctx, l, l)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := healthpb.NewHealthClient(conn)
	for _, want := range []healthpb.HealthCheckResponse_ServingStatus{healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING} {
		if out, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil || out.GetStatus() != want {
			t.Errorf("got %v, %v, want %v", out, err, want)
		}
		drain()
	}
	if err := errors.Join(server.Shutdown(t.Context()), <-served); err != nil {
		t.Errorf("got %v", err)
	}
}

// blocked is a rate limit service that answers when it is told to.
type blocked struct {
	rlspb.UnimplementedRateLimitServiceServer
	arrived, finish chan struct{}
}

func (b *blocked) ShouldRateLimit(context.Context, *rlspb.RateLimitRequest) (*rlspb.RateLimitResponse, error) {
	close(b.arrived)
	<-b.finish
	return &rlspb.RateLimitResponse{}, nil
}

func TestCallsUnderWayEndBeforeShutdownDoes(t *testing.T) {
	listener := bufconn.Listen(1 << 16)
	server := &Server{grpc: grpc.NewServer()}
	service := &blocked{arrived: make(chan struct{}), finish: make(chan struct{})}
	rlspb.RegisterRateLimitServiceServer(server.grpc, service)
	served, answered := make(chan error, 1), make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() {
		_, err := rlspb.NewRateLimitServiceClient(conn).ShouldRateLimit(context.Background(), &rlspb.RateLimitRequest{})
		answered <- err
	}()
	<-service.arrived
	expired, cancel := context.WithCancel(t.Context())
	cancel()
	if err := server.Shutdown(expired); !errors.Is(err, context.Canceled) {
		t.Errorf("a shutdown without time got %v", err)
	}
	close(service.finish)
	if err := errors.Join(<-answered, server.Shutdown(t.Context()), <-served); err != nil {
		t.Errorf("got %v", err)
	}
}
