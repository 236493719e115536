package conformance

import (
	"net"
	"net/http"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
	"github.com/tallyman-dev/tallyman/pkg/tallyman/grpclimit"
)

// dial connects to a gRPC server until the test ends.
func dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// interceptors serves an app with the library in front, and returns the address.
func interceptors(t *testing.T, l *tallyman.Limiter) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(grpclimit.UnaryServerInterceptor(l)))
	healthpb.RegisterHealthServer(server, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return listener.Addr().String()
}

// call makes a call of what a request has besides its method and its path.
func call(conn *grpc.ClientConn) way {
	return func(t *testing.T, r *http.Request) (int, http.Header) {
		ctx := t.Context()
		for name, values := range r.Header {
			for _, value := range values {
				ctx = metadata.AppendToOutgoingContext(ctx, name, value)
			}
		}
		var header, trailer metadata.MD
		_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
		switch status.Code(err) {
		case codes.OK:
			return http.StatusOK, headersIn(header)
		case codes.ResourceExhausted:
			return http.StatusTooManyRequests, headersIn(trailer)
		default:
			t.Fatal(err)
			return 0, nil
		}
	}
}

func headersIn(md metadata.MD) http.Header {
	header := http.Header{}
	for name, values := range md {
		header[http.CanonicalHeaderKey(name)] = values
	}
	return header
}
