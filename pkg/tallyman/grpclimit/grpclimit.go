// Package grpclimit puts a tallyman.Limiter in front of a gRPC server: it asks for
// each call, ends those that are refused, and tells clients of their limits in
// metadata.
//
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(grpclimit.UnaryServerInterceptor(limiter)),
//		grpc.ChainStreamInterceptor(grpclimit.StreamServerInterceptor(limiter)),
//	)
//
// A stream is one call, whatever the number of its messages. Slots of Concurrency
// limits are held until the call has ended.
package grpclimit

import (
	"context"
	"net/http"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
	"github.com/tallyman-dev/tallyman/pkg/tallyman/httplimit"
)

// Admitter decides requests, as *tallyman.Limiter does.
type Admitter interface {
	Admit(context.Context, tallyman.Request) tallyman.Decision
}

// UnaryServerInterceptor lets through what is admitted, with the headers of
// httplimit.SetHeaders as header metadata. What is not ends with the status of
// Status, and has the headers as trailer metadata.
func UnaryServerInterceptor(a Admitter) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, in any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		d := a.Admit(ctx, Request(ctx, info.FullMethod))
		// An error means that nobody can be told: the call did not come by a server.
		if !d.Allowed {
			_ = grpc.SetTrailer(ctx, headers(d))
			return nil, Status(d).Err()
		}
		defer d.Release()
		_ = grpc.SetHeader(ctx, headers(d))
		return handler(ctx, in)
	}
}

// StreamServerInterceptor is UnaryServerInterceptor for streams. It decides before
// the first message.
func StreamServerInterceptor(a Admitter) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		d := a.Admit(stream.Context(), Request(stream.Context(), info.FullMethod))
		if !d.Allowed {
			stream.SetTrailer(headers(d))
			return Status(d).Err()
		}
		defer d.Release()
		_ = stream.SetHeader(headers(d)) // nothing was sent before: the handler has not run
		return handler(server, stream)
	}
}

// Request is what policies can look at of a call: a POST to the full method, such as
// /shop.Orders/Create, with the metadata as headers.
func Request(ctx context.Context, fullMethod string) tallyman.Request {
	r := tallyman.Request{Method: http.MethodPost, Path: fullMethod}
	md, _ := metadata.FromIncomingContext(ctx)
	r.Header = make(http.Header, len(md))
	for name, values := range md {
		if !strings.HasPrefix(name, ":") {
			r.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	if authority := md[":authority"]; len(authority) > 0 {
		r.Host = authority[0]
	}
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		r.RemoteAddr = p.Addr.String()
	}
	return r
}

// Status is that of a call that was not admitted: RESOURCE_EXHAUSTED, or UNAVAILABLE
// when the store did not answer. It has a RetryInfo where there is a time at which
// the call can be admitted, and the policy has clients told.
func Status(d tallyman.Decision) *status.Status {
	code := codes.ResourceExhausted
	if d.IsOutage() {
		code = codes.Unavailable
	}
	s := status.New(code, d.Detail())
	if d.RetryAfter > 0 && d.Response.Headers != tallyman.HeadersNone {
		s, _ = s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(d.RetryAfter)}) // it is no OK, and a message
	}
	return s
}

func headers(d tallyman.Decision) metadata.MD {
	h := http.Header{}
	httplimit.SetHeaders(h, d)
	md := make(metadata.MD, len(h))
	for name, values := range h {
		md[strings.ToLower(name)] = values
	}
	return md
}
