package conformance

import (
	"context"
	"net"
	"net/http"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

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

// orders is a service with one call, Create.
var orders = grpc.ServiceDesc{ServiceName: "shop.Orders", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
	MethodName: "Create",
	Handler:    create,
}}}

// create is what protoc makes of a call, with an answer at once.
func create(_ any, ctx context.Context, decode func(any) error, ask grpc.UnaryServerInterceptor) (any, error) {
	in := &emptypb.Empty{}
	if err := decode(in); err != nil {
		return nil, err
	}
	return ask(ctx, in, &grpc.UnaryServerInfo{FullMethod: "/shop.Orders/Create"}, func(context.Context, any) (any, error) {
		return &emptypb.Empty{}, nil
	})
}

// interceptors serves orders with the library in front, and returns the address.
func interceptors(t *testing.T, l *tallyman.Limiter) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(grpclimit.UnaryServerInterceptor(l)))
	server.RegisterService(&orders, nil)
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
		err := conn.Invoke(ctx, "/shop.Orders/Create", &emptypb.Empty{}, &emptypb.Empty{}, grpc.Header(&header), grpc.Trailer(&trailer))
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
