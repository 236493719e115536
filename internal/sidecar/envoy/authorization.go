package envoy

import (
	"context"
	"net/http"
	"strings"

	authpb "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
	"github.com/tallyman-dev/tallyman/pkg/tallyman/httplimit"
)

// authorization decides requests as they came to Envoy.
type authorization struct {
	authpb.UnimplementedAuthorizationServer
	limiter Limiter
}

// Check implements authpb.AuthorizationServer.
func (a *authorization) Check(ctx context.Context, in *authpb.CheckRequest) (*authpb.CheckResponse, error) {
	r := requestOf(in.GetAttributes())
	d := a.limiter.Admit(ctx, r)
	if !d.Allowed {
		return denied(d, httplimit.IsGRPC(&http.Request{Header: r.Header})), nil
	}
	d.Release() // nobody tells when the request has ended
	headers := http.Header{}
	httplimit.SetHeaders(headers, d)
	return &authpb.CheckResponse{
		Status: &rpcstatus.Status{Code: int32(codes.OK)},
		HttpResponse: &authpb.CheckResponse_OkResponse{OkResponse: &authpb.OkHttpResponse{
			ResponseHeadersToAdd: headerOptions(headers),
		}},
	}, nil
}

// denied is the answer that Envoy passes on to the client.
func denied(d tallyman.Decision, isGRPC bool) *authpb.CheckResponse {
	code := codes.ResourceExhausted
	if d.IsOutage() {
		code = codes.Unavailable
	}
	refusal := httplimit.Refusal(d, isGRPC)
	return &authpb.CheckResponse{
		Status: &rpcstatus.Status{Code: int32(code), Message: d.Detail()},
		HttpResponse: &authpb.CheckResponse_DeniedResponse{DeniedResponse: &authpb.DeniedHttpResponse{
			Status:  &typepb.HttpStatus{Code: typepb.StatusCode(refusal.StatusCode)},
			Headers: headerOptions(refusal.Header),
			Body:    string(refusal.Body),
		}},
	}
}

// requestOf is the request that Envoy describes. Its peer is Envoy's: with
// trusted hops, the client is told from X-Forwarded-For as everywhere. A
// connection that is not HTTP has its peer only.
func requestOf(a *authpb.AttributeContext) tallyman.Request {
	described := a.GetRequest().GetHttp()
	r := tallyman.Request{
		Method: described.GetMethod(), Host: described.GetHost(),
		Header:     make(http.Header, len(described.GetHeaders())),
		RemoteAddr: a.GetSource().GetAddress().GetSocketAddress().GetAddress(),
	}
	r.Path, r.RawQuery = tallyman.SplitTarget(described.GetPath())
	for name, value := range described.GetHeaders() {
		addHeader(r.Header, name, value)
	}
	// With encode_raw_headers they come as they were sent, one by one.
	for _, h := range described.GetHeaderMap().GetHeaders() {
		addHeader(r.Header, h.GetKey(), string(h.GetRawValue()))
	}
	return r
}

// addHeader leaves out HTTP/2's pseudo-headers, which the request has as parts.
func addHeader(h http.Header, name, value string) {
	if !strings.HasPrefix(name, ":") {
		h.Add(name, value)
	}
}
