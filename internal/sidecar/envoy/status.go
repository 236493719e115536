package envoy

import (
	"math"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
	"github.com/tallyman-dev/tallyman/pkg/tallyman/httplimit"
)

// statusOf is a descriptor's status. Of several limits it tells of the one that
// matters most. A descriptor that meets none is OK and has no limit, and neither
// has one of whose limits nothing is known, since another's refusal was enough.
func statusOf(d tallyman.Decision) *rlspb.RateLimitResponse_DescriptorStatus {
	s := &rlspb.RateLimitResponse_DescriptorStatus{Code: codeOf(d)}
	if l := httplimit.Nearest(d); l != nil {
		s.CurrentLimit = &rlspb.RateLimitResponse_RateLimit{
			Name: l.Title, RequestsPerUnit: clamp(l.Requests), Unit: units[l.Window],
		}
		s.LimitRemaining = clamp(l.Remaining)
		// Envoy tells clients whole seconds, and cuts off the rest.
		s.DurationUntilReset = durationpb.New((l.ResetAfter + time.Second - 1).Truncate(time.Second))
	}
	return s
}

func codeOf(d tallyman.Decision) rlspb.RateLimitResponse_Code {
	if d.Allowed {
		return rlspb.RateLimitResponse_OK
	}
	return rlspb.RateLimitResponse_OVER_LIMIT
}

const day = 24 * time.Hour

// units are the windows that the protocol has names for, as Envoy takes them. All
// others are UNKNOWN, and Envoy tells clients of no window then.
var units = map[time.Duration]rlspb.RateLimitResponse_RateLimit_Unit{
	time.Second: rlspb.RateLimitResponse_RateLimit_SECOND,
	time.Minute: rlspb.RateLimitResponse_RateLimit_MINUTE,
	time.Hour:   rlspb.RateLimitResponse_RateLimit_HOUR,
	day:         rlspb.RateLimitResponse_RateLimit_DAY,
	7 * day:     rlspb.RateLimitResponse_RateLimit_WEEK,
	30 * day:    rlspb.RateLimitResponse_RateLimit_MONTH,
	365 * day:   rlspb.RateLimitResponse_RateLimit_YEAR,
}

// clamp is n, or as near to it as the protocol can tell.
func clamp(n int64) uint32 { return uint32(min(max(0, n), math.MaxUint32)) }
