package envoy

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authpb "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// described is a request from 192.0.2.1 as Envoy describes it, with these headers.
func described(method, path string, headers map[string]string) *authpb.CheckRequest {
	all := map[string]string{":method": method, ":path": path, ":authority": "shop.example", "x-forwarded-for": "192.0.2.1"}
	maps.Copy(all, headers)
	return &authpb.CheckRequest{Attributes: &authpb.AttributeContext{
		Source: peerAt("192.0.2.1"),
		Request: &authpb.AttributeContext_Request{Http: &authpb.AttributeContext_HttpRequest{
			Method: method, Path: path, Host: "shop.example", Headers: all, Protocol: "HTTP/1.1",
		}},
	}}
}

func peerAt(address string) *authpb.AttributeContext_Peer {
	return &authpb.AttributeContext_Peer{Address: &corepb.Address{Address: &corepb.Address_SocketAddress{
		SocketAddress: &corepb.SocketAddress{Address: address, PortSpecifier: &corepb.SocketAddress_PortValue{PortValue: 4711}},
	}}}
}

func check(t testing.TB, client authpb.AuthorizationClient, in *authpb.CheckRequest) *authpb.CheckResponse {
	t.Helper()
	out, err := client.Check(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// told are headers by name, with "+" before those that join the app's own.
func told(options []*corepb.HeaderValueOption) map[string]string {
	headers := map[string]string{}
	for _, o := range options {
		sign := ""
		if o.GetAppendAction() == corepb.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD {
			sign = "+"
		}
		headers[o.GetHeader().GetKey()] = sign + o.GetHeader().GetValue()
	}
	return headers
}

const perClient = `response: {headers: Both}, limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog, key: [{clientIP: {}}, {path: {}}]}]`

func TestHTTPRequestsAreAllowedAndDenied(t *testing.T) {
	onEveryStore(t, func(t *testing.T, o tallyman.Options) {
		client := authpb.NewAuthorizationClient(dial(t, limiterOn(t, o, perClient)))
		allowed := check(t, client, described("GET", "/v1/orders?page=2", nil))
		if codes.Code(allowed.GetStatus().GetCode()) != codes.OK {
			t.Fatalf("got %v", allowed)
		}
		want := map[string]string{
			"ratelimit": `+"x";r=0;t=3600`, "ratelimit-policy": `+"x";q=1;w=3600`,
			"x-ratelimit-limit": "1", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "3600",
		}
		if diff := cmp.Diff(want, told(allowed.GetOkResponse().GetResponseHeadersToAdd())); diff != "" {
			t.Errorf("headers (-want +got):\n%s", diff)
		}
		if n := len(allowed.GetOkResponse().GetHeaders()); n != 0 {
			t.Errorf("the app is sent %d headers", n)
		}

		denied := check(t, client, described("GET", "/v1/orders", nil))
		answer := denied.GetDeniedResponse()
		headers := told(answer.GetHeaders())
		if codes.Code(denied.GetStatus().GetCode()) != codes.ResourceExhausted || answer.GetStatus().GetCode() != 429 ||
			headers["content-type"] != "application/problem+json" || headers["retry-after"] == "" || !strings.Contains(answer.GetBody(), `"x"`) {
			t.Errorf("got %v", denied)
		}
	})
}

func TestGRPCCallsAreDeniedAsSuch(t *testing.T) {
	client := authpb.NewAuthorizationClient(dial(t, limiterOn(t, tallyman.Options{}, `limits: [{name: x, requests: 0, window: 1h}]`)))
	answer := check(t, client, described("POST", "/shop.Orders/Create", map[string]string{"content-type": "application/grpc+proto"})).GetDeniedResponse()
	headers := told(answer.GetHeaders())
	if answer.GetStatus().GetCode() != 200 || headers["grpc-status"] != "8" || headers["content-type"] != "application/grpc" ||
		!strings.Contains(headers["grpc-message"], `"x"`) || answer.GetBody() != "" {
		t.Errorf("got %v", answer)
	}
}

func TestDenialsAreAsThePolicySays(t *testing.T) {
	client := authpb.NewAuthorizationClient(dial(t, limiterOn(t, tallyman.Options{},
		`response: {statusCode: 420, body: "<p>Calm</p>", contentType: text/html, headers: None}, limits: [{name: x, requests: 0, window: 1h}]`)))
	answer := check(t, client, described("GET", "/", nil)).GetDeniedResponse()
	names := slices.Sorted(maps.Keys(told(answer.GetHeaders())))
	if diff := cmp.Diff([]string{"content-type", "x-content-type-options"}, names); diff != "" || answer.GetStatus().GetCode() != 420 || answer.GetBody() != "<p>Calm</p>" {
		t.Errorf("got %v", answer)
	}
}

func TestDenialForWantOfTheStoreIsUnavailable(t *testing.T) {
	client := authpb.NewAuthorizationClient(dial(t, limiterOn(t, tallyman.Options{Store: "redis://127.0.0.1:1"},
		`limits: [{name: x, requests: 1, window: 1h, failurePolicy: Deny}]`)))
	out := check(t, client, described("GET", "/", nil))
	if codes.Code(out.GetStatus().GetCode()) != codes.Unavailable || out.GetDeniedResponse().GetStatus().GetCode() != 503 {
		t.Errorf("got %v", out)
	}
	out = check(t, client, described("POST", "/", map[string]string{"content-type": "application/grpc"}))
	if got := told(out.GetDeniedResponse().GetHeaders())["grpc-status"]; got != "14" {
		t.Errorf("a gRPC call gets status %s", got)
	}
}

// The limit is for requests that have all of it.
func TestPoliciesSeeWhatEnvoyDescribes(t *testing.T) {
	limit := `limits: [{name: x, requests: 0, window: 1h, match: [{methods: [POST], path: {value: /v1}, headers: [{name: X-Plan, value: free}],
		expression: "request.host == 'shop.example' && request.query['page'] == '2' && request.clientIP == '192.0.2.1'"}]}]`
	plan := map[string]string{"x-plan": "free"}
	for name, tc := range map[string]struct {
		in   *authpb.CheckRequest
		want bool
	}{
		"all":          {described("POST", "/v1/orders?page=2", plan), true},
		"other method": {described("GET", "/v1/orders?page=2", plan), false},
		"other path":   {described("POST", "/v2?page=2", plan), false},
		"other query":  {described("POST", "/v1?page=3", plan), false},
		"other header": {described("POST", "/v1?page=2", map[string]string{"x-plan": "paid"}), false},
		"nothing":      {&authpb.CheckRequest{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			client := authpb.NewAuthorizationClient(dial(t, limiterOn(t, tallyman.Options{}, limit)))
			if denied := check(t, client, tc.in).GetDeniedResponse() != nil; denied != tc.want {
				t.Errorf("denied is %v", denied)
			}
		})
	}
}

func TestRawHeadersComeOneByOne(t *testing.T) {
	in := described("GET", "/", nil)
	h := in.GetAttributes().GetRequest().GetHttp()
	h.Headers, h.HeaderMap = nil, &corepb.HeaderMap{Headers: []*corepb.HeaderValue{
		{Key: ":path", RawValue: []byte("/")}, {Key: "x-api-key", RawValue: []byte("alice")}, {Key: "x-api-key", RawValue: []byte{0xff}},
	}}
	want := map[string][]string{"X-Api-Key": {"alice", "\xff"}}
	if diff := cmp.Diff(want, map[string][]string(requestOf(in.GetAttributes()).Header)); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

// H1: what the client wrote into X-Forwarded-For is not where it comes from.
func TestClientsAddressIsTheOneThatProxiesSaw(t *testing.T) {
	const limit = `limits: [{name: x, requests: 0, window: 1h, match: [{expression: "request.clientIP == '192.0.2.1'"}]}]`
	for name, tc := range map[string]struct {
		hops   int
		source string
		xff    string
		want   bool
	}{
		"no hop: Envoy's peer":                  {0, "192.0.2.1", "6.6.6.6", true},
		"no hop, forged":                        {0, "6.6.6.6", "192.0.2.1", false},
		"a hop: what Envoy appended":            {1, "192.0.2.1", "6.6.6.6, 192.0.2.1", true},
		"a hop, forged":                         {1, "6.6.6.6", "192.0.2.1, 6.6.6.6", false},
		"two hops: what a proxy before it did":  {2, "10.0.0.1", "6.6.6.6,192.0.2.1, 10.0.0.1", true},
		"two hops, but it came by none of them": {2, "192.0.2.1", "192.0.2.1", true},
		"IPv4 as IPv6":                          {0, "::ffff:192.0.2.1", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			client := authpb.NewAuthorizationClient(dial(t, limiterOn(t, tallyman.Options{TrustedHops: tc.hops}, limit)))
			in := described("GET", "/", map[string]string{"x-forwarded-for": tc.xff})
			in.Attributes.Source = peerAt(tc.source)
			if denied := check(t, client, in).GetDeniedResponse() != nil; denied != tc.want {
				t.Errorf("denied is %v", denied)
			}
		})
	}
}
