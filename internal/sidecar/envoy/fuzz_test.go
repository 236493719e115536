package envoy

import (
	"net/http"
	"testing"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	authpb "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// looking has a limit that looks at everything.
const looking = `limits: [{name: x, requests: 5, window: 1s, match: [{path: {type: RegularExpression, value: ".*"},
	expression: "request.headers.exists(name, name != '') || request.query['a'] == request.cookies['b']"}],
	key: [{clientIP: {}}, {path: {}}, {method: {}}, {header: {name: Host}}, {cookie: {name: b}}, {queryParameter: {name: a}}], cost: {expression: "size(request.path)"}}]`

func wire(t testing.TB, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Whatever a client sends, it is refused or answered with a status for each
// descriptor, and what it describes stays within what it has sent.
func FuzzRateLimitRequest(f *testing.F) {
	f.Add(wire(f, &rlspb.RateLimitRequest{Domain: "shop"}))
	f.Add(wire(f, &rlspb.RateLimitRequest{Domain: "shop", HitsAddend: 3, Descriptors: []*ratelimitpb.RateLimitDescriptor{
		descriptor("remote_address", "::1%eth0", "path", "/a/../%2e?a=b"), descriptor("cookie", "b=c", ":authority", "[::1]:80"),
		adding(1<<63, descriptor("method", "", "", "x")), giving(2, descriptor("host", "", "masked_remote_address", "10.0.0.0/33")),
	}}))
	s := &rateLimitService{limiter: limiterOn(f, tallyman.Options{}, looking)}
	f.Fuzz(func(t *testing.T, data []byte) {
		in := &rlspb.RateLimitRequest{}
		if proto.Unmarshal(data, in) != nil {
			return
		}
		out, err := s.ShouldRateLimit(t.Context(), in)
		if (err == nil) != (validate(in) == nil) {
			t.Fatalf("got %v", err)
		}
		if err != nil {
			return
		}
		if len(out.GetStatuses()) != len(in.GetDescriptors()) {
			t.Fatalf("%d descriptors got %d statuses", len(in.GetDescriptors()), len(out.GetStatuses()))
		}
		for _, d := range in.GetDescriptors() {
			r := tallyman.Request{Header: http.Header{}}
			describe(&r, in.GetDomain(), d, hitsOf(in, d))
			// A key is in a header's name and in the list of them, a value in a header and in another part.
			most := len(domainHeader) + len(descriptorHeader) + 2*len(data)
			if size := len(r.Method) + len(r.Host) + len(r.Path) + len(r.RawQuery) + sizeOf(r.Header); size > most || r.Hits < 0 {
				t.Fatalf("%d bytes became a request of %d: %+v", len(data), size, r)
			}
		}
	})
}

func FuzzCheckRequest(f *testing.F) {
	f.Add(wire(f, described("GET", "/v1?a=b", map[string]string{"cookie": "b=c", "connection": "x", "": ""})))
	f.Add(wire(f, &authpb.CheckRequest{}))
	a := &authorization{limiter: limiterOn(f, tallyman.Options{}, looking)}
	f.Fuzz(func(t *testing.T, data []byte) {
		in := &authpb.CheckRequest{}
		if proto.Unmarshal(data, in) != nil {
			return
		}
		if out, err := a.Check(t.Context(), in); err != nil || out.GetHttpResponse() == nil {
			t.Fatalf("got %v, %v", out, err)
		}
		r := requestOf(in.GetAttributes())
		if size := len(r.Method) + len(r.Host) + len(r.Path) + len(r.RawQuery) + sizeOf(r.Header); size > len(data) {
			t.Fatalf("%d bytes became a request of %d", len(data), size)
		}
	})
}

func sizeOf(h http.Header) (size int) {
	for name, values := range h {
		size += len(name)
		for _, value := range values {
			size += len(value)
		}
	}
	return size
}
