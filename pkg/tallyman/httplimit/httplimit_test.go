package httplimit_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
	"github.com/tallyman-dev/tallyman/pkg/tallyman/httplimit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limiter is one in memory with these specs, the policies a, b and so on.
func limiter(t *testing.T, specs ...string) *tallyman.Limiter {
	t.Helper()
	var file strings.Builder
	for i, spec := range specs {
		fmt.Fprintf(&file, "---\napiVersion: tallyman.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: %c}\nspec: {selector: {}, %s}\n", 'a'+i, spec)
	}
	path := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := tallyman.New(t.Context(), tallyman.Options{Store: tallyman.MemoryStore, PolicyFile: path})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var app = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "app") })

// call makes a request to the app behind the limiter.
func call(l httplimit.Admitter) *http.Response {
	w := httptest.NewRecorder()
	httplimit.Middleware(l)(app).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	return w.Result()
}

// decided is an Admitter that always decides the same.
type decided tallyman.Decision

func (d decided) Admit(context.Context, tallyman.Request) tallyman.Decision {
	return tallyman.Decision(d)
}

// items reads a header as a list of strings with integer parameters.
func items(t *testing.T, h http.Header, name string) (list []string) {
	t.Helper()
	parsed, err := httpsfv.UnmarshalList(h.Values(name))
	if err != nil {
		t.Fatalf("%s %q is not a structured field: %v", name, h.Values(name), err)
	}
	for _, member := range parsed {
		item := member.(httpsfv.Item)
		text := item.Value.(string)
		for _, key := range item.Params.Names() {
			value, _ := item.Params.Get(key)
			text += fmt.Sprintf(" %s=%d", key, value.(int64))
		}
		list = append(list, text)
	}
	return list
}

func TestHeadersAreStructuredFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time stands still
		l := limiter(t, `limits: [{name: burst, requests: 10, window: 1500ms, algorithm: TokenBucket, burst: 20}, {name: hour, requests: 5, window: 1h, algorithm: SlidingLog}]`)
		h := call(l).Header
		if diff := cmp.Diff([]string{"hour q=5 w=3600", "burst q=10 w=2"}, items(t, h, "RateLimit-Policy")); diff != "" {
			t.Errorf("RateLimit-Policy (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"hour r=4 t=3600", "burst r=19 t=1"}, items(t, h, "RateLimit")); diff != "" {
			t.Errorf("RateLimit (-want +got):\n%s", diff)
		}
		if h.Get("Retry-After") != "" || h.Get("X-RateLimit-Limit") != "" {
			t.Errorf("headers that nobody asked for: %v", h)
		}
	})
}

func TestHeadersNameThePolicyWhereThereAreSeveral(t *testing.T) {
	l := limiter(t, `limits: [{name: x, requests: 5, window: 1h}]`, `limits: [{name: x, requests: 9, window: 1h, match: [{methods: [PUT]}]}]`)
	if diff := cmp.Diff([]string{"a/x q=5 w=3600"}, items(t, call(l).Header, "RateLimit-Policy")); diff != "" {
		t.Errorf("RateLimit-Policy (-want +got):\n%s", diff)
	}
}

func TestHeaderStyles(t *testing.T) {
	for style, want := range map[string][]string{
		"IETF":   {"Ratelimit", "Ratelimit-Policy"},
		"Legacy": {"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"},
		"Both":   {"Ratelimit", "Ratelimit-Policy", "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"},
		"None":   nil,
	} {
		t.Run(style, func(t *testing.T) {
			l := limiter(t, `response: {headers: `+style+`}, limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog}]`)
			var got []string
			for name := range call(l).Header {
				if strings.Contains(strings.ToLower(name), "ratelimit") {
					got = append(got, name)
				}
			}
			if diff := cmp.Diff(want, got, sorted()); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
			refusal := call(l)
			if hasRetry := refusal.Header.Get("Retry-After") != ""; refusal.StatusCode != 429 || hasRetry != (style != "None") {
				t.Errorf("a refusal is %d with headers %v", refusal.StatusCode, refusal.Header)
			}
		})
	}
}

func sorted() cmp.Option {
	return cmp.Transformer("set", func(names []string) map[string]bool {
		set := map[string]bool{}
		for _, name := range names {
			set[name] = true
		}
		return set
	})
}

func TestLegacyHeadersTellOfTheNearestLimit(t *testing.T) {
	l := limiter(t, `response: {headers: Legacy}, limits: [{name: wide, requests: 1000, window: 1h, algorithm: SlidingLog}, {name: tight, requests: 2, window: 1m, algorithm: SlidingLog}]`)
	h := call(l).Header
	if h.Get("X-RateLimit-Limit") != "2" || h.Get("X-RateLimit-Remaining") != "1" || h.Get("X-RateLimit-Reset") != "60" {
		t.Errorf("headers are %v", h)
	}
}

func TestShadowLimitsAreNotTold(t *testing.T) {
	h := call(limiter(t, `enforcement: Shadow, limits: [{name: x, requests: 0, window: 1h}]`)).Header
	if h.Get("RateLimit") != "" || h.Get("RateLimit-Policy") != "" {
		t.Errorf("headers are %v", h)
	}
}

func TestHeadersStaySmallWithManyLimits(t *testing.T) {
	limits := make([]string, 60)
	for i := range limits {
		limits[i] = fmt.Sprintf("{name: limit-%d, requests: %d, window: 1h, algorithm: SlidingLog}", i, 100-i)
	}
	told := items(t, call(limiter(t, "limits: ["+strings.Join(limits, ", ")+"]")).Header, "RateLimit")
	if len(told) != 16 || !strings.HasPrefix(told[0], "limit-59 r=40") {
		t.Errorf("told of %d limits, first of %q; want 16, first the one nearest to its end", len(told), told[0])
	}
}

// Who waits for as long as Retry-After says is admitted.
func TestRetryAfterIsTrue(t *testing.T) {
	for _, algorithm := range []string{"FixedWindow", "SlidingWindow", "SlidingLog", "TokenBucket"} {
		for _, window := range []string{"100ms", "1s", "2500ms", "1m", "24h"} {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, `limits: [{name: x, requests: 3, window: `+window+`, algorithm: `+algorithm+`}]`)
				time.Sleep(1234567 * time.Microsecond) // into the middle of a window
				for n := range 10 {
					resp := call(l)
					if resp.StatusCode == http.StatusOK {
						continue
					}
					wait, err := strconv.Atoi(resp.Header.Get("Retry-After"))
					if err != nil || wait < 1 {
						t.Fatalf("%s %s: Retry-After is %q", algorithm, window, resp.Header.Get("Retry-After"))
					}
					time.Sleep(time.Duration(wait) * time.Second)
					if resp := call(l); resp.StatusCode != http.StatusOK {
						t.Fatalf("%s %s: request %d was refused after the %d s of Retry-After", algorithm, window, n, wait)
					}
				}
			})
		}
	}
}

// Case H17: of the waits that clients are told, some are the least there is and some
// later by the whole jitter, and none is too early.
func TestRefusedClientsAreSpreadByTheJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time stands still
		l := limiter(t, `response: {retryAfterJitter: 5s, headers: Both}, limits: [{name: x, requests: 1, window: 1m, algorithm: SlidingLog}]`)
		call(l)
		waits := map[string]int{}
		for range 1000 {
			resp := call(l)
			waits[resp.Header.Get("Retry-After")]++
			if got := items(t, resp.Header, "RateLimit"); !slices.Equal(got, []string{"x r=0 t=60"}) {
				t.Fatalf("the limit's own figures have changed: %v", got)
			}
			if got := resp.Header.Get("X-RateLimit-Reset"); got != "60" {
				t.Fatalf("X-RateLimit-Reset is %s", got)
			}
		}
		if got := slices.Sorted(maps.Keys(waits)); !slices.Equal(got, []string{"60", "61", "62", "63", "64", "65"}) {
			t.Errorf("Retry-After is %v", waits)
		}
	})
}

// problem is what a problem document says.
func problem(t *testing.T, resp *http.Response) (doc map[string]any) {
	t.Helper()
	if got := resp.Header.Get("Content-Type"); got != "application/problem+json" {
		t.Fatalf("the content type is %q", got)
	}
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestRefusalIsAProblemDocument(t *testing.T) {
	got := problem(t, call(limiter(t, `limits: [{name: x, requests: 0, window: 1h}, {name: other, requests: 9, window: 1h}]`)))
	want := map[string]any{
		"type":              "https://iana.org/assignments/http-problem-types#quota-exceeded",
		"title":             "The request exceeds a limit",
		"status":            429.0,
		"detail":            `The request costs more than limit "x" ever admits.`,
		"violated-policies": []any{"x"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problem (-want +got):\n%s", diff)
	}
}

func TestRefusalIsAsThePolicySays(t *testing.T) {
	resp := call(limiter(t, `response: {statusCode: 420, body: "<p>Calm</p>", contentType: text/html}, limits: [{name: x, requests: 0, window: 1h}]`))
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 420 || string(body) != "<p>Calm</p>" || resp.Header.Get("Content-Type") != "text/html" {
		t.Errorf("got %d %q %v", resp.StatusCode, body, resp.Header)
	}
}

func TestRefusalForWantOfTheStoreIs503WithoutFigures(t *testing.T) {
	resp := call(decided{
		Reason: tallyman.StoreUnavailable, Policy: "a", Limit: "x", Degraded: true,
		Limits:   []tallyman.LimitDecision{{Policy: "a", Limit: "x", Title: "x", Reason: tallyman.StoreUnavailable, Headers: tallyman.HeadersBoth}},
		Response: tallyman.Response{StatusCode: 429, Body: "too many"},
	})
	if got := problem(t, resp)["type"]; got != "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity" {
		t.Errorf("the type is %v", got)
	}
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("RateLimit") != "" || resp.Header.Get("X-RateLimit-Remaining") != "" {
		t.Errorf("got %d with %v", resp.StatusCode, resp.Header)
	}
}

func TestRefusalOfAGRPCCallIsTrailersOnly(t *testing.T) {
	for reason, want := range map[tallyman.Reason]string{tallyman.LimitExceeded: "8", tallyman.StoreUnavailable: "14"} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "/shop.Orders/Create", nil)
		r.Header.Set("Content-Type", "application/grpc+proto")
		httplimit.Refuse(w, r, tallyman.Decision{Reason: reason, Response: tallyman.Response{StatusCode: 429}})
		resp := w.Result()
		if resp.StatusCode != 200 || resp.Header.Get("Grpc-Status") != want || w.Body.Len() != 0 {
			t.Errorf("%s: got %d %v %q", reason, resp.StatusCode, resp.Header, w.Body)
		}
	}
}

func TestRefusalOfAGRPCCallSaysWhenToTryAgain(t *testing.T) {
	for _, wait := range []time.Duration{time.Microsecond, 1500 * time.Millisecond, 300 * 24 * time.Hour} {
		d := tallyman.Decision{Reason: tallyman.LimitExceeded, Limit: "x", RetryAfter: wait}
		encoded := httplimit.Refusal(d, true).Header.Get("Grpc-Status-Details-Bin")
		data, err := base64.RawStdEncoding.DecodeString(encoded)
		if err != nil {
			t.Fatal(err)
		}
		var got status.Status
		var info errdetails.RetryInfo
		if err := proto.Unmarshal(data, &got); err != nil || got.GetCode() != 8 || got.GetMessage() != d.Detail() || len(got.GetDetails()) != 1 {
			t.Fatalf("got %v, %v", &got, err)
		}
		if err := got.GetDetails()[0].UnmarshalTo(&info); err != nil || info.GetRetryDelay().AsDuration() != wait {
			t.Errorf("got %v, %v, want %v", &info, err, wait)
		}
	}
	for name, d := range map[string]tallyman.Decision{
		"never": {Reason: tallyman.CostExceedsLimit},
		"none":  {Reason: tallyman.LimitExceeded, RetryAfter: time.Second, Response: tallyman.Response{Headers: tallyman.HeadersNone}},
	} {
		if got := httplimit.Refusal(d, true).Header.Get("Grpc-Status-Details-Bin"); got != "" {
			t.Errorf("%s: got %s", name, got)
		}
	}
}

func TestRefusalIsReadByAGRPCClient(t *testing.T) {
	l := limiter(t, `limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog}]`)
	l.Admit(t.Context(), tallyman.Request{})
	server := httptest.NewUnstartedServer(httplimit.Middleware(l)(app))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	conn, err := grpc.NewClient(server.Listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	s := grpcstatus.Convert(err)
	if s.Code() != codes.ResourceExhausted || len(s.Details()) != 1 {
		t.Fatalf("got %v with %v", err, s.Details())
	}
	if info, ok := s.Details()[0].(*errdetails.RetryInfo); !ok || info.GetRetryDelay().AsDuration() < 59*time.Minute {
		t.Errorf("got %v", s.Details())
	}
}

func TestGRPCIsToldFromWhatHasANameLikeIt(t *testing.T) {
	for contentType, want := range map[string]bool{
		"application/grpc": true, "application/grpc+proto": true, "application/grpc;charset=utf-8": true,
		"application/grpc-web": false, "application/grpc-web+proto": false, "application/grpc-web-text": false,
		"application/grpcish": false, "application/json": false, "": false,
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "/shop.Orders/Create", nil)
		r.Header.Set("Content-Type", contentType)
		if got := httplimit.IsGRPC(r); got != want {
			t.Errorf("%q is gRPC: %v, want %v", contentType, got, want)
		}
		httplimit.Refuse(w, r, tallyman.Decision{Reason: tallyman.LimitExceeded, Response: tallyman.Response{StatusCode: 429}})
		if got := w.Header().Get("Grpc-Status") != ""; got != want || (!got && w.Code != 429) {
			t.Errorf("%q is refused with %d %v", contentType, w.Code, w.Header())
		}
	}
}

func TestRefusalRepeatsNothingOfTheRequest(t *testing.T) {
	l := limiter(t, `limits: [{name: x, requests: 0, window: 1h, key: [{header: {name: X-Api-Key}}, {queryParameter: {name: q}}]}]`)
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/sesame?q=sesame", nil)
	r.Header.Set("X-Api-Key", "sesame")
	httplimit.Middleware(l)(app).ServeHTTP(w, r)
	if text := fmt.Sprint(w.Header()) + w.Body.String(); w.Code != 429 || strings.Contains(text, "sesame") {
		t.Errorf("got %d %s", w.Code, text)
	}
}

// A client that writes its whole body before it reads gets the refusal, and the
// next request on its connection is answered right or not at all.
func TestRefusalIsReadByAClientThatSendsItsBodyFirst(t *testing.T) {
	server := httptest.NewServer(httplimit.Middleware(limiter(t, `limits: [{name: x, requests: 0, window: 1h, match: [{methods: [POST]}]}]`))(app))
	defer server.Close()
	for name, tc := range map[string]struct {
		head      string
		size      int
		keepsOpen bool
	}{
		"70 KB":       {"Content-Length: 70000\r\n", 70_000, true},
		"50 MB":       {"Content-Length: 50000000\r\n", 50_000_000, false},
		"5 MB chunks": {"Transfer-Encoding: chunked\r\n", 5_000_000, false},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			post := "POST / HTTP/1.1\r\nHost: a\r\n" + tc.head + "\r\n"
			body := strings.Repeat("x", tc.size)
			if strings.HasPrefix(tc.head, "Transfer") {
				body = fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", tc.size, body)
			}
			if _, err := io.WriteString(conn, post+body); err != nil {
				t.Fatalf("send the body: %v", err)
			}
			reader := bufio.NewReader(conn)
			resp, err := http.ReadResponse(reader, nil)
			if err != nil || resp.StatusCode != 429 {
				t.Fatalf("got %v, %v", resp, err)
			}
			if problem(t, resp)["status"] != 429.0 || resp.Close == tc.keepsOpen {
				t.Errorf("the answer announces that the connection is closed: %v", resp.Close)
			}
			_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			resp, err = http.ReadResponse(reader, nil)
			switch {
			case !tc.keepsOpen && err == nil:
				t.Errorf("the next request was answered with %d, want a closed connection", resp.StatusCode)
			case tc.keepsOpen && (err != nil || resp.StatusCode != 200):
				t.Errorf("the next request got %v, %v", resp, err)
			}
		})
	}
}

func TestRefusalDoesNotAskForABodyThatTheClientHoldsBack(t *testing.T) {
	server := httptest.NewServer(httplimit.Middleware(limiter(t, `limits: [{name: x, requests: 0, window: 1h}]`))(app))
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 50000000\r\n\r\n")
	if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || resp.StatusCode != 429 {
		t.Errorf("got %v, %v, want the refusal at once", resp, err)
	}
}

// A client that names its key in Connection has it removed by the proxy: the app
// would see an anonymous client, and the limit a new one each time.
func TestHeadersThatEndAtTheProxyAreNotCountedBy(t *testing.T) {
	handler := httplimit.Middleware(limiter(t,
		`limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog, key: [{header: {name: X-Api-Key}}]}]`))(app)
	var got []int
	for i := range 2 {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header["Connection"] = []string{"keep-alive", "x-api-key , close"}
		r.Header.Set("X-Api-Key", fmt.Sprint(i))
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		got = append(got, w.Code)
		if r.Header.Get("X-Api-Key") == "" {
			t.Error("the request itself was changed")
		}
	}
	if diff := cmp.Diff([]int{200, 429}, got); diff != "" {
		t.Error(diff)
	}
}

// Else a client could have the address forgotten that a load balancer has seen, or
// look like a probe of the kubelet on whose node one runs.
func TestClientsCannotTakeAwayWhatProxiesInFrontHaveSaid(t *testing.T) {
	names := []string{"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Connection", "x-api-key, "+strings.ToLower(strings.Join(names, ", ")))
	for _, name := range append(names, "X-Api-Key") {
		r.Header.Set(name, "1")
	}
	got := httplimit.Request(r).Header
	for _, name := range names {
		if got.Get(name) == "" {
			t.Errorf("%s is not there", name)
		}
	}
	if got.Get("X-Api-Key") != "" {
		t.Error("X-Api-Key, which ends at the proxy, is there")
	}
}

// net/http would wait for the rest of a short body before it answers.
func TestRefusalDoesNotWaitForABodyThatNeverComes(t *testing.T) {
	t.Parallel() // it takes as long as we linger
	server := httptest.NewServer(httplimit.Middleware(limiter(t, `limits: [{name: x, requests: 0, window: 1h}]`))(app))
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc")
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || resp.StatusCode != 429 {
		t.Errorf("got %v, %v, want the refusal", resp, err)
	}
}
