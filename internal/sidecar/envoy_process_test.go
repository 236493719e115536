package sidecar

import (
	"strings"
	"testing"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	authpb "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// Whichever protocol an Envoy speaks, and to whichever sidecar, the count is one.
func TestEnvoysProtocolsShareOneCount(t *testing.T) {
	redis := testredis.Start(t)
	publish(t, redis, 1, `{"selector":{},"storeTimeout":"10s","limits":[{"name":"x","requests":10,"window":"1h","algorithm":"SlidingLog","key":[{"header":{"name":"X-Api-Key"}}]}]}`)
	var conns []*grpc.ClientConn
	var doors []*process
	for range 2 {
		door := run(t, []string{"Envoy gRPC", "admin"}, "--store", redis.URL(), "--namespace", "shop", "--pod-labels", "app=orders",
			"--grpc-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
		awaitReady(t, door)
		conn, err := grpc.NewClient(strings.TrimPrefix(door.urls["Envoy gRPC"], "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if health, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil || health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("health is %v, %v", health, err)
		}
		doors, conns = append(doors, door), append(conns, conn)
	}
	admitted := 0
	for i := range 24 {
		conn := conns[i/2%2]
		if i%2 == 0 {
			out, err := rlspb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &rlspb.RateLimitRequest{
				Domain: "shop", Descriptors: []*ratelimitpb.RateLimitDescriptor{{Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: "x-api-key", Value: "alice"}}}},
			})
			if err != nil {
				t.Fatal(err)
			}
			if out.GetOverallCode() == rlspb.RateLimitResponse_OK {
				admitted++
			}
			continue
		}
		out, err := authpb.NewAuthorizationClient(conn).Check(t.Context(), &authpb.CheckRequest{Attributes: &authpb.AttributeContext{
			Request: &authpb.AttributeContext_Request{Http: &authpb.AttributeContext_HttpRequest{
				Method: "GET", Path: "/", Headers: map[string]string{"x-api-key": "alice"},
			}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		if codes.Code(out.GetStatus().GetCode()) == codes.OK {
			admitted++
		}
	}
	if admitted != 10 {
		t.Errorf("admitted %d of 24 under a limit of 10", admitted)
	}
	for _, door := range doors { // their clients are connected still
		if code := door.stop(t); code != 0 || strings.Contains(door.log.String(), "Cut off") {
			t.Errorf("a sidecar ended with code %d", code)
		}
	}
}
