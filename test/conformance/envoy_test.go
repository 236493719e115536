package conformance

import (
	"net/http"
	"strings"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	authpb "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
)

// externalAuthorization asks as Envoy's ext_authz filter does, with
// encode_raw_headers.
func externalAuthorization(conn *grpc.ClientConn) way {
	return func(t *testing.T, r *http.Request) (int, http.Header) {
		described := &authpb.AttributeContext_HttpRequest{
			Method: r.Method, Host: r.Host, Path: r.RequestURI, HeaderMap: &corepb.HeaderMap{},
		}
		for name, values := range r.Header {
			for _, value := range values {
				described.HeaderMap.Headers = append(described.HeaderMap.Headers,
					&corepb.HeaderValue{Key: strings.ToLower(name), RawValue: []byte(value)})
			}
		}
		out, err := authpb.NewAuthorizationClient(conn).Check(t.Context(), &authpb.CheckRequest{
			Attributes: &authpb.AttributeContext{Request: &authpb.AttributeContext_Request{Http: described}},
		})
		if err != nil {
			t.Fatal(err)
		}
		status, options := http.StatusOK, out.GetOkResponse().GetResponseHeadersToAdd()
		if denied := out.GetDeniedResponse(); denied != nil {
			status, options = int(denied.GetStatus().GetCode()), denied.GetHeaders()
		}
		header := http.Header{}
		for _, o := range options {
			header.Add(o.GetHeader().GetKey(), o.GetHeader().GetValue())
		}
		return status, header
	}
}

// rateLimitService asks as Envoy's rate limit filter does, with all that there is to
// a request in one descriptor.
func rateLimitService(conn *grpc.ClientConn) way {
	return func(t *testing.T, r *http.Request) (int, http.Header) {
		d := &ratelimitpb.RateLimitDescriptor{}
		add := func(key, value string) {
			d.Entries = append(d.Entries, &ratelimitpb.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		add("method", r.Method)
		add("host", r.Host)
		add("path", r.RequestURI)
		for name, values := range r.Header {
			for _, value := range values {
				add(name, value)
			}
		}
		addresses := strings.Split(r.Header.Get("X-Forwarded-For"), ",")
		add("remote_address", strings.TrimSpace(addresses[len(addresses)-1]))
		out, err := rlspb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &rlspb.RateLimitRequest{
			Domain: "shop", Descriptors: []*ratelimitpb.RateLimitDescriptor{d},
		})
		if err != nil {
			t.Fatal(err)
		}
		status := http.StatusOK
		if out.GetOverallCode() == rlspb.RateLimitResponse_OVER_LIMIT {
			status = http.StatusTooManyRequests
		}
		header := http.Header{}
		for _, h := range out.GetResponseHeadersToAdd() {
			header.Add(h.GetKey(), h.GetValue())
		}
		return status, header
	}
}
