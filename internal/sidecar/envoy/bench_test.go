package envoy

import (
	"testing"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// What a call takes beside gRPC and the store: units are at hand.
func BenchmarkShouldRateLimit(b *testing.B) {
	one := []*ratelimitpb.RateLimitDescriptor{descriptor("key", "a")}
	for name, bc := range map[string]struct {
		headers     string
		descriptors []*ratelimitpb.RateLimitDescriptor
	}{
		"one":               {"None", one},
		"one, with headers": {"IETF", one},
		"three":             {"None", []*ratelimitpb.RateLimitDescriptor{descriptor("key", "a"), descriptor("key", "b"), descriptor("key", "c")}},
	} {
		b.Run(name, func(b *testing.B) {
			s := &rateLimitService{limiter: limiterOn(b, tallyman.Options{},
				`response: {headers: `+bc.headers+`}, limits: [{name: x, requests: 1000000000, window: 1h, algorithm: TokenBucket, burst: 1000000000,
				distribution: {mode: Leased}, key: [{header: {name: key}}]}]`)}
			in := &rlspb.RateLimitRequest{Domain: "shop", Descriptors: bc.descriptors}
			b.ReportAllocs()
			for b.Loop() {
				if out, err := s.ShouldRateLimit(b.Context(), in); err != nil || out.GetOverallCode() != ok {
					b.Fatal(out, err)
				}
			}
		})
	}
}
