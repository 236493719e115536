package envoy

import (
	"testing"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// What a call takes beside gRPC and the store.
func BenchmarkShouldRateLimit(b *testing.B) {
	for _, headers := range []string{"None", "IETF"} {
		b.Run(headers, func(b *testing.B) {
			s := &rateLimitService{limiter: limiterOn(b, tallyman.Options{},
				`response: {headers: `+headers+`}, limits: [{name: x, requests: 1000000000, window: 1h, algorithm: TokenBucket, burst: 1000000000, key: [{header: {name: key}}]}]`)}
			in := &rlspb.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimitpb.RateLimitDescriptor{descriptor("key", "a")}}
			b.ReportAllocs()
			for b.Loop() {
				if out, err := s.ShouldRateLimit(b.Context(), in); err != nil || out.GetOverallCode() != ok {
					b.Fatal(out, err)
				}
			}
		})
	}
}
