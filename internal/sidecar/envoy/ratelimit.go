package envoy

import (
	"context"
	"net/http"
	"slices"
	"sync"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
	"github.com/tallyman-dev/tallyman/pkg/tallyman/httplimit"
)

// rateLimitService decides calls whose descriptors are each a request that
// policies look at. A call is charged to all limits that its descriptors meet or,
// when one of them refuses, to none.
type rateLimitService struct {
	rlspb.UnimplementedRateLimitServiceServer
	limiter Limiter
}

// ShouldRateLimit implements rlspb.RateLimitServiceServer. Descriptors that meet no
// limit are OK, whatever their domain.
func (s *rateLimitService) ShouldRateLimit(ctx context.Context, in *rlspb.RateLimitRequest) (*rlspb.RateLimitResponse, error) {
	if err := validate(in); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	c := newCall(in)
	defer c.end()
	all := c.decide(ctx, s.limiter)
	all.Release() // nobody tells when the request has ended
	if all.Allowed && !c.giveBack(ctx, s.limiter) {
		return nil, status.Error(codes.Unavailable, "the store did not take back the hits")
	}

	out := &rlspb.RateLimitResponse{OverallCode: codeOf(all), Statuses: statusesOf(c.each)}
	if all.Allowed {
		httplimit.SetHeaders(c.headers, all)
		out.ResponseHeadersToAdd = headerValues(c.headers)
		return out, nil
	}
	// Envoy sends the status that it is configured to send, and makes of an answer
	// to a gRPC call what that needs.
	const isGRPC = false
	refusal := httplimit.Refusal(all, isGRPC)
	out.ResponseHeadersToAdd, out.RawBody = headerValues(refusal.Header), refusal.Body
	return out, nil
}

// call is what a call asks about its descriptors. It is used again.
type call struct {
	// taken are those that add hits, peeked those that add none and want to know
	// whether there is room, and returned those with negative hits.
	taken, peeked, returned descriptors
	each                    []tallyman.Decision // of all, in their order
	headers                 http.Header         // of the answer
}

// descriptors are some of a call's.
type descriptors struct {
	requests []tallyman.Request
	places   []int // in the call
}

var calls = sync.Pool{New: func() any { return &call{headers: http.Header{}} }}

func newCall(in *rlspb.RateLimitRequest) *call {
	c := calls.Get().(*call)
	for i, d := range in.GetDescriptors() {
		hits, some := hitsOf(in, d), &c.taken
		switch {
		case hits == 0:
			some = &c.peeked
		case d.GetIsNegativeHits():
			some = &c.returned
		}
		describe(some.add(i), in.GetDomain(), d, hits)
		c.each = append(c.each, tallyman.Decision{Allowed: true})
	}
	return c
}

// end lets others use the call. It holds on to nothing of what was asked.
func (c *call) end() {
	for _, some := range []*descriptors{&c.taken, &c.peeked, &c.returned} {
		some.reset()
	}
	clear(c.each)
	clear(c.headers)
	c.each = c.each[:0]
	calls.Put(c)
}

// add returns an empty request, the next one, for the descriptor at a place.
func (d *descriptors) add(place int) *tallyman.Request {
	d.places = append(d.places, place)
	n := len(d.requests)
	d.requests = slices.Grow(d.requests, 1)[:n+1]
	r := &d.requests[n]
	if r.Header == nil {
		r.Header = http.Header{}
	}
	return r
}

// reset empties the requests, and keeps their headers to be filled again.
func (d *descriptors) reset() {
	for i := range d.requests {
		header := d.requests[i].Header
		clear(header)
		d.requests[i] = tallyman.Request{Header: header}
	}
	d.requests, d.places = d.requests[:0], d.places[:0]
}

// decide peeks before it takes: what is refused there takes nothing here.
func (c *call) decide(ctx context.Context, l Limiter) tallyman.Decision {
	peeked := c.ask(ctx, l.PeekAll, &c.peeked)
	if !peeked.Allowed {
		taken := c.ask(ctx, l.PeekAll, &c.taken)
		peeked.Limits = append(peeked.Limits, taken.Limits...)
		return peeked
	}
	taken := c.ask(ctx, l.AdmitAll, &c.taken)
	taken.Limits = append(taken.Limits, peeked.Limits...)
	return taken
}

type decider func(context.Context, []tallyman.Request) (tallyman.Decision, []tallyman.Decision)

func (c *call) ask(ctx context.Context, decide decider, some *descriptors) tallyman.Decision {
	if len(some.requests) == 0 {
		return tallyman.Decision{Allowed: true}
	}
	all, each := decide(ctx, some.requests)
	for i, place := range some.places {
		c.each[place] = each[i]
	}
	return all
}

// giveBack returns hits to the limits, and says whether that went well.
func (c *call) giveBack(ctx context.Context, l Limiter) bool {
	for _, r := range c.returned.requests {
		if l.Refund(ctx, r, "") != nil {
			return false
		}
	}
	return true
}
