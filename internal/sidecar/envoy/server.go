package envoy

import (
	"context"
	"net"
	"time"

	authpb "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// The bounds of what a client may ask for.
const (
	// maxMessage is the longest message, in bytes. Envoy takes 60 KiB of headers
	// by default, and its external authorization sends them all.
	maxMessage = 256 << 10
	// maxCalls bounds the calls of one connection at a time; Envoy opens another
	// one for more.
	maxCalls = 1000
)

// streamWorkers is how many calls at a time are answered by goroutines that stay.
const streamWorkers = 64

// Server serves both protocols. Like an http.Server it serves once.
type Server struct{ grpc *grpc.Server }

// Limiter decides calls, as *tallyman.Limiter does.
type Limiter interface {
	Admit(context.Context, tallyman.Request) tallyman.Decision
	AdmitAll(context.Context, []tallyman.Request) (all tallyman.Decision, each []tallyman.Decision)
	PeekAll(context.Context, []tallyman.Request) (all tallyman.Decision, each []tallyman.Decision)
	Refund(ctx context.Context, r tallyman.Request, token string) error
	IsReady() bool
}

// NewServer returns a server that asks a limiter of its own for each protocol. It is
// healthy, as grpc.health.v1 has it, once they know their policies and until ctx ends.
func NewServer(ctx context.Context, rateLimit, extAuthz Limiter, more ...grpc.ServerOption) *Server {
	s := grpc.NewServer(append(more,
		grpc.MaxRecvMsgSize(maxMessage),
		// A goroutine whose stack has grown already takes less than a new one does.
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxConcurrentStreams(maxCalls),
		grpc.ConnectionTimeout(10*time.Second), // until a client has said that it speaks HTTP/2
		// Find out about clients that are gone, and let those ask whether we are.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	)...)
	rlspb.RegisterRateLimitServiceServer(s, &rateLimitService{limiter: rateLimit})
	authpb.RegisterAuthorizationServer(s, &authorization{limiter: extAuthz})
	healthpb.RegisterHealthServer(s, &health{serving: func() bool { return ctx.Err() == nil && rateLimit.IsReady() && extAuthz.IsReady() }})
	return &Server{grpc: s}
}

// Serve answers calls until Shutdown or Close.
func (s *Server) Serve(l net.Listener) error { return s.grpc.Serve(l) }

// Shutdown takes no more calls, and lets those end that are under way. When ctx
// ends before they do, it returns ctx's error and they go on.
func (s *Server) Shutdown(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.grpc.GracefulStop()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close cuts off the calls that are under way.
func (s *Server) Close() error {
	s.grpc.Stop()
	return nil
}

// health answers checks. It has no Watch, which would be a call that is under way
// for ever; clients do without.
type health struct {
	healthpb.UnimplementedHealthServer
	serving func() bool
}

// Check implements healthpb.HealthServer.
func (h *health) Check(_ context.Context, in *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	switch in.GetService() {
	case "", rlspb.RateLimitService_ServiceDesc.ServiceName, authpb.Authorization_ServiceDesc.ServiceName:
	default:
		return nil, status.Error(codes.NotFound, "there is no such service")
	}
	if !h.serving() {
		return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}, nil
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}
