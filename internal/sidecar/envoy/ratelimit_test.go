package envoy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

const (
	ok   = rlspb.RateLimitResponse_OK
	over = rlspb.RateLimitResponse_OVER_LIMIT
)

// descriptor has entries with these keys and values, in turn.
func descriptor(keysAndValues ...string) *ratelimitpb.RateLimitDescriptor {
	d := &ratelimitpb.RateLimitDescriptor{}
	for i := 0; i < len(keysAndValues); i += 2 {
		d.Entries = append(d.Entries, &ratelimitpb.RateLimitDescriptor_Entry{Key: keysAndValues[i], Value: keysAndValues[i+1]})
	}
	return d
}

// adding has a descriptor add so many hits.
func adding(hits uint64, d *ratelimitpb.RateLimitDescriptor) *ratelimitpb.RateLimitDescriptor {
	d.HitsAddend = wrapperspb.UInt64(hits)
	return d
}

func giving(hits uint64, d *ratelimitpb.RateLimitDescriptor) *ratelimitpb.RateLimitDescriptor {
	d.IsNegativeHits = true
	return adding(hits, d)
}

// askAbout makes a call in domain shop that must be answered.
func askAbout(t testing.TB, client rlspb.RateLimitServiceClient, ds ...*ratelimitpb.RateLimitDescriptor) *rlspb.RateLimitResponse {
	t.Helper()
	out, err := client.ShouldRateLimit(t.Context(), &rlspb.RateLimitRequest{Domain: "shop", Descriptors: ds})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.GetStatuses()) != len(ds) {
		t.Fatalf("%d descriptors got %d statuses", len(ds), len(out.GetStatuses()))
	}
	return out
}

// outcome is an answer in short: each descriptor's code and what remains.
func outcome(out *rlspb.RateLimitResponse) string {
	text := out.GetOverallCode().String()
	for _, s := range out.GetStatuses() {
		text += fmt.Sprintf(" %s:%d", s.GetCode(), s.GetLimitRemaining())
	}
	return text
}

func headersOf(all []*corepb.HeaderValue) map[string]string {
	headers := map[string]string{}
	for _, h := range all {
		headers[h.GetKey()] = h.GetValue()
	}
	return headers
}

// Two descriptors as an Envoy sends them: by address, and by address and path.
const shop = `limits: [
	{name: per-client, requests: 5, window: 1h, algorithm: SlidingLog, key: [{clientIP: {}}], match: [{path: {type: Exact, value: /}}]},
	{name: per-path, requests: 2, window: 1m, algorithm: SlidingLog, key: [{clientIP: {}}, {path: {}}], match: [{path: {value: /v1}}]}]`

func TestEachDescriptorHasItsStatusAndARefusalTakesNothing(t *testing.T) {
	onEveryStore(t, func(t *testing.T, o tallyman.Options) {
		client := rlspb.NewRateLimitServiceClient(dial(t, limiterOn(t, o, shop)))
		call := func() *rlspb.RateLimitResponse {
			return askAbout(t, client, descriptor("remote_address", "192.0.2.1"),
				descriptor("remote_address", "192.0.2.1", "path", "/v1/orders?page=2"), descriptor("other", "x", ":path", "/other"))
		}
		var last *rlspb.RateLimitResponse
		for _, want := range []string{"OK OK:4 OK:1 OK:0", "OK OK:3 OK:0 OK:0", "OVER_LIMIT OK:3 OVER_LIMIT:0 OK:0"} {
			if last = call(); outcome(last) != want {
				t.Errorf("got %s, want %s", outcome(last), want)
			}
		}
		got := last.GetStatuses()
		reset := got[1].GetDurationUntilReset().AsDuration()
		if reset < 30*time.Second || reset > time.Minute || reset%time.Second != 0 {
			t.Errorf("reset is in %v", reset)
		}
		want := []*rlspb.RateLimitResponse_DescriptorStatus{
			{Code: ok, LimitRemaining: 3, CurrentLimit: &rlspb.RateLimitResponse_RateLimit{
				Name: "per-client", RequestsPerUnit: 5, Unit: rlspb.RateLimitResponse_RateLimit_HOUR}},
			{Code: over, CurrentLimit: &rlspb.RateLimitResponse_RateLimit{
				Name: "per-path", RequestsPerUnit: 2, Unit: rlspb.RateLimitResponse_RateLimit_MINUTE}},
			{Code: ok},
		}
		if diff := cmp.Diff(want, got, protocmp.Transform(), protocmp.IgnoreMessages(&durationpb.Duration{})); diff != "" {
			t.Errorf("statuses (-want +got):\n%s", diff)
		}
		// The refusal is remembered, and the store not asked: nothing is known of
		// the limit that has room.
		again := call()
		if again.GetStatuses()[0].GetCurrentLimit() != nil || outcome(again) != "OVER_LIMIT OK:0 OVER_LIMIT:0 OK:0" {
			t.Errorf("got %s", outcome(again))
		}
		if got := outcome(askAbout(t, client, descriptor("remote_address", "192.0.2.1"))); got != "OK OK:2" {
			t.Errorf("after the refusals, got %s", got)
		}
	})
}

func TestEntriesAreWhatARequestHas(t *testing.T) {
	for name, tc := range map[string]struct {
		limit string // what a limit of 0 says of the requests that it is for
		hit   []string
		miss  []string
	}{
		"address":       {`match: [{expression: "request.clientIP == '192.0.2.1'"}]`, []string{"remote_address", "192.0.2.1"}, []string{"remote_address", "192.0.2.2"}},
		"network":       {`match: [{expression: "request.clientIP == '192.0.2.0'"}]`, []string{"masked_remote_address", "192.0.2.0/24"}, []string{"masked_remote_address", "192.0.2/24"}},
		"mapped":        {`match: [{expression: "request.clientIP == '192.0.2.1'"}]`, []string{"remote_address", "::ffff:192.0.2.1"}, []string{"remote_address", "/run/socket"}},
		"method":        {`match: [{methods: [POST]}]`, []string{"method", "post"}, []string{"method", "GET"}},
		":method":       {`match: [{methods: [POST]}]`, []string{":method", "POST"}, []string{"Method", "POST"}},
		"host":          {`match: [{expression: "request.host == 'shop.example'"}]`, []string{"host", "Shop.Example:443"}, []string{"host", "other.example"}},
		":authority":    {`match: [{expression: "request.host == 'shop.example'"}]`, []string{":authority", "shop.example"}, []string{"authority", "shop.example"}},
		"path":          {`match: [{path: {value: /v1/orders}}]`, []string{"path", "/v1//orders/./7?page=2"}, []string{"path", "/v2/orders"}},
		"query":         {`match: [{expression: "request.query['page'] == '2'"}]`, []string{":path", "/?page=2"}, []string{":path", "/"}},
		"first path":    {`match: [{path: {value: /v1}}]`, []string{"path", "/v1", ":path", "/v2"}, []string{"path", "/v2", ":path", "/v1"}},
		"generic key":   {`match: [{headers: [{name: generic_key, value: slow}]}]`, []string{"generic_key", "slow"}, []string{"generic_key", "fast"}},
		"several":       {`match: [{headers: [{name: generic_key, value: slow}, {name: header_match, value: x}]}]`, []string{"generic_key", "slow", "header_match", "x"}, []string{"generic_key", "slow"}},
		"header":        {`match: [{headers: [{name: X-Plan, value: free}]}]`, []string{"x-plan", "free"}, []string{"x-plan", "paid"}},
		"domain":        {`match: [{headers: [{name: X-Envoy-Domain, value: shop}]}]`, []string{"a", "b", "x-envoy-domain", "other"}, nil},
		"other domain":  {`match: [{headers: [{name: X-Envoy-Domain, value: other}]}]`, nil, []string{"x-envoy-domain", "other"}},
		"forwarded for": {`match: [{expression: "request.clientIP == '192.0.2.9'"}]`, []string{"x-forwarded-for", "1.1.1.1, 192.0.2.9"}, []string{"x-forwarded-for", "192.0.2.9, 1.1.1.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			client := rlspb.NewRateLimitServiceClient(dial(t,
				limiterOn(t, tallyman.Options{TrustedHops: 1}, `limits: [{name: x, requests: 0, window: 1h, `+tc.limit+`}]`)))
			if tc.hit != nil && askAbout(t, client, descriptor(tc.hit...)).GetOverallCode() != over {
				t.Errorf("%q is not what the limit is for", tc.hit)
			}
			if tc.miss != nil && askAbout(t, client, descriptor(tc.miss...)).GetOverallCode() != ok {
				t.Errorf("%q is what the limit is for", tc.miss)
			}
		})
	}
}

const ten = `limits: [{name: x, requests: 10, window: 1h, algorithm: SlidingLog, key: [{header: {name: key}}]}]`

func TestHitsAddend(t *testing.T) {
	onEveryStore(t, func(t *testing.T, o tallyman.Options) {
		client := rlspb.NewRateLimitServiceClient(dial(t, limiterOn(t, o, ten)))
		a, b := func() *ratelimitpb.RateLimitDescriptor { return descriptor("key", "a") }, descriptor("key", "b")
		for _, step := range []struct {
			name string
			hits uint32
			ds   []*ratelimitpb.RateLimitDescriptor
			want string
		}{
			{"none is one", 0, []*ratelimitpb.RateLimitDescriptor{a()}, "OK OK:9"},
			{"of the call", 3, []*ratelimitpb.RateLimitDescriptor{a(), b}, "OK OK:6 OK:7"},
			{"its own goes first", 3, []*ratelimitpb.RateLimitDescriptor{adding(2, a()), b}, "OK OK:4 OK:4"},
			{"0 of its own takes nothing", 3, []*ratelimitpb.RateLimitDescriptor{adding(0, a())}, "OK OK:4"},
			{"too many are refused, and take nothing", 0, []*ratelimitpb.RateLimitDescriptor{adding(5, a()), b}, "OVER_LIMIT OVER_LIMIT:4 OK:4"},
			{"same counter twice", 2, []*ratelimitpb.RateLimitDescriptor{a(), a()}, "OK OK:0 OK:0"},
			{"0 tells that there is no room", 0, []*ratelimitpb.RateLimitDescriptor{adding(0, a())}, "OVER_LIMIT OVER_LIMIT:0"},
			{"and others take nothing then", 0, []*ratelimitpb.RateLimitDescriptor{b, adding(0, a())}, "OVER_LIMIT OK:4 OVER_LIMIT:0"},
			{"negative ones come back", 0, []*ratelimitpb.RateLimitDescriptor{giving(4, a()), b}, "OK OK:0 OK:3"},
			{"and are there again", 0, []*ratelimitpb.RateLimitDescriptor{adding(0, a())}, "OK OK:4"},
			{"more than a number holds", 0, []*ratelimitpb.RateLimitDescriptor{adding(1<<64-1, a())}, "OVER_LIMIT OVER_LIMIT:4"},
		} {
			out, err := client.ShouldRateLimit(t.Context(), &rlspb.RateLimitRequest{Domain: "shop", Descriptors: step.ds, HitsAddend: step.hits})
			if err != nil || outcome(out) != step.want {
				t.Errorf("%s: got %s, %v, want %s", step.name, outcome(out), err, step.want)
			}
		}
	})
}

func TestClientsAreToldOfTheirLimits(t *testing.T) {
	client := rlspb.NewRateLimitServiceClient(dial(t, limiterOn(t, tallyman.Options{},
		`response: {headers: Both}, limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog}]`)))
	admitted := askAbout(t, client, descriptor("a", "b"))
	want := map[string]string{
		"ratelimit": `"x";r=0;t=3600`, "ratelimit-policy": `"x";q=1;w=3600`,
		"x-ratelimit-limit": "1", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "3600",
	}
	if diff := cmp.Diff(want, headersOf(admitted.GetResponseHeadersToAdd())); diff != "" || len(admitted.GetRawBody()) > 0 {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if len(admitted.GetRequestHeadersToAdd()) > 0 {
		t.Error("the app is told something")
	}
	refused := askAbout(t, client, descriptor("a", "b"))
	headers := headersOf(refused.GetResponseHeadersToAdd())
	if headers["retry-after"] == "" || headers["content-type"] != "application/problem+json" {
		t.Errorf("a refusal has headers %v", headers)
	}
	var problem struct{ Detail string }
	if err := json.Unmarshal(refused.GetRawBody(), &problem); err != nil || !strings.Contains(problem.Detail, `"x"`) {
		t.Errorf("a refusal says %s", refused.GetRawBody())
	}
}

func TestWithoutTheStoreTheFailurePolicyDecides(t *testing.T) {
	client := rlspb.NewRateLimitServiceClient(dial(t, limiterOn(t, tallyman.Options{Store: "redis://127.0.0.1:1"}, `limits: [
		{name: open, requests: 1, window: 1h, failurePolicy: Allow, match: [{headers: [{name: kind, value: open}]}]},
		{name: shut, requests: 1, window: 1h, failurePolicy: Deny, match: [{headers: [{name: kind, value: shut}]}]}]`)))
	if got := outcome(askAbout(t, client, descriptor("kind", "open"))); got != "OK OK:0" {
		t.Errorf("got %s", got)
	}
	if got := outcome(askAbout(t, client, descriptor("kind", "open"), descriptor("kind", "shut"))); got != "OVER_LIMIT OK:0 OVER_LIMIT:0" {
		t.Errorf("got %s", got)
	}
	_, err := client.ShouldRateLimit(t.Context(), &rlspb.RateLimitRequest{
		Domain: "shop", Descriptors: []*ratelimitpb.RateLimitDescriptor{giving(1, descriptor("kind", "open"))},
	})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("hits that cannot be given back got %v", err)
	}
}

// What is used for a call is used again.
func TestACallKnowsNothingOfTheOneBefore(t *testing.T) {
	s := &rateLimitService{limiter: limiterOn(t, tallyman.Options{},
		`response: {headers: Both}, limits: [{name: x, requests: 100, window: 1h, algorithm: SlidingLog, key: [{queryParameter: {name: page}}],
		match: [{methods: [POST], path: {value: /v1}, headers: [{name: plan, value: free}], expression: "request.host == 'a' && request.clientIP != ''"}]}]`)}
	full := []string{"method", "POST", "host", "a", "path", "/v1?page=1", "remote_address", "192.0.2.1", "plan", "free"}
	for i := range 3 {
		for without := -2; without < len(full); without += 2 {
			d := descriptor(full...)
			if without >= 0 {
				d = descriptor(slices.Concat(full[:without], full[without+2:], []string{"other", "x"})...)
			}
			out, err := s.ShouldRateLimit(t.Context(), &rlspb.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimitpb.RateLimitDescriptor{d}})
			if err != nil {
				t.Fatal(err)
			}
			met := out.GetStatuses()[0].GetCurrentLimit() != nil
			if told := len(out.GetResponseHeadersToAdd()) > 0; met != (without < 0) || told != met {
				t.Errorf("round %d: met %v and told %v of a limit without %v", i, met, told, full[max(0, without)])
			}
		}
	}
}

// What is held for a request is let go at once: nobody tells when it has ended.
func TestSlotsAreNotHeld(t *testing.T) {
	client := rlspb.NewRateLimitServiceClient(dial(t, limiterOn(t, tallyman.Options{},
		`limits: [{name: x, requests: 1, window: 1h, algorithm: Concurrency}]`)))
	for range 3 {
		if got := askAbout(t, client, descriptor("a", "b")).GetOverallCode(); got != ok {
			t.Fatalf("got %s", got)
		}
	}
}

func TestCallsThatTheProtocolForbidsAreRefused(t *testing.T) {
	client := rlspb.NewRateLimitServiceClient(dial(t, limiterOn(t, tallyman.Options{}, ten)))
	one := []*ratelimitpb.RateLimitDescriptor{descriptor("a", "b")}
	many := func(n int) (ds []*ratelimitpb.RateLimitDescriptor) {
		for range n {
			ds = append(ds, descriptor("a", "b"))
		}
		return ds
	}
	for name, tc := range map[string]struct {
		in   *rlspb.RateLimitRequest
		says string
		code codes.Code
	}{
		"no domain":       {&rlspb.RateLimitRequest{Descriptors: one}, "domain", codes.InvalidArgument},
		"no descriptors":  {&rlspb.RateLimitRequest{Domain: "a"}, "descriptors", codes.InvalidArgument},
		"many":            {&rlspb.RateLimitRequest{Domain: "a", Descriptors: many(maxDescriptors + 1)}, "32", codes.InvalidArgument},
		"empty":           {&rlspb.RateLimitRequest{Domain: "a", Descriptors: append(many(1), descriptor())}, "descriptors[1].entries", codes.InvalidArgument},
		"many entries":    {&rlspb.RateLimitRequest{Domain: "a", Descriptors: []*ratelimitpb.RateLimitDescriptor{descriptor(make([]string, 2*maxEntries+2)...)}}, "64", codes.InvalidArgument},
		"a long message":  {&rlspb.RateLimitRequest{Domain: strings.Repeat("a", maxMessage), Descriptors: one}, "larger than max", codes.ResourceExhausted},
		"as many as fit":  {&rlspb.RateLimitRequest{Domain: "a", Descriptors: many(maxDescriptors)}, "", codes.OK},
		"entries that do": {&rlspb.RateLimitRequest{Domain: "a", Descriptors: []*ratelimitpb.RateLimitDescriptor{descriptor(make([]string, 2*maxEntries)...)}}, "", codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := client.ShouldRateLimit(t.Context(), tc.in)
			if s := status.Convert(err); s.Code() != tc.code || !strings.Contains(s.Message(), tc.says) {
				t.Errorf("got %v, want %s with %q", err, tc.code, tc.says)
			}
		})
	}
}

func TestUnits(t *testing.T) {
	for window, want := range map[string]string{
		"1s": "SECOND", "60s": "MINUTE", "1h": "HOUR", "24h": "DAY", "168h": "WEEK", "720h": "MONTH", "8760h": "YEAR", "2m": "UNKNOWN",
	} {
		client := rlspb.NewRateLimitServiceClient(dial(t, limiterOn(t, tallyman.Options{}, `limits: [{name: x, requests: 5000000000, window: `+window+`}]`)))
		limit := askAbout(t, client, descriptor("a", "b")).GetStatuses()[0].GetCurrentLimit()
		if limit.GetUnit().String() != want || limit.GetRequestsPerUnit() != 1<<32-1 {
			t.Errorf("a window of %s is told as %v", window, limit)
		}
	}
}
