package envoy

import (
	"math"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
	"github.com/tallyman-dev/tallyman/pkg/tallyman/httplimit"
)

// standing is a descriptor's status, with room for what it may refer to.
type standing struct {
	status rlspb.RateLimitResponse_DescriptorStatus
	limit  rlspb.RateLimitResponse_RateLimit
	reset  durationpb.Duration
}

// statusesOf are the statuses of descriptors, in their order.
func statusesOf(each []tallyman.Decision) []*rlspb.RateLimitResponse_DescriptorStatus {
	standings, statuses := make([]standing, len(each)), make([]*rlspb.RateLimitResponse_DescriptorStatus, len(each))
	for i := range each {
		standings[i].tell(each[i])
		statuses[i] = &standings[i].status
	}
	return statuses
}

// tell tells, of several limits, of the one that matters most. A descriptor that
// meets none is OK and has no limit, and neither has one of whose limits nothing is
// known, since another's refusal was enough.
func (s *standing) tell(d tallyman.Decision) {
	s.status.Code = codeOf(d)
	l := httplimit.Nearest(d)
	if l == nil {
		return
	}
	s.limit.Name, s.limit.RequestsPerUnit, s.limit.Unit = l.Title, clamp(l.Requests), units[l.Window]
	// Envoy tells clients whole seconds, and cuts off the rest.
	s.reset.Seconds = int64((l.ResetAfter + time.Second - 1) / time.Second)
	s.status.CurrentLimit, s.status.LimitRemaining, s.status.DurationUntilReset = &s.limit, clamp(l.Remaining), &s.reset
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
