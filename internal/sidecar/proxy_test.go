package sidecar

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tallyman-dev/tallyman/internal/sidecar/tracing"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
	"github.com/tallyman-dev/tallyman/pkg/tallyman/httplimit"
)

const roomy = `limits: [{name: x, requests: 1000, window: 1h, algorithm: SlidingLog}]`

// inFrontOf serves a sidecar's proxy to an app.
func inFrontOf(t *testing.T, app http.Handler, specs ...string) *httptest.Server {
	t.Helper()
	upstream, err := url.Parse(serveHTTP(t, app).URL)
	if err != nil {
		t.Fatal(err)
	}
	limiter, m := inMemory(t, specs...)
	proxy, closeIdle := newProxy(upstream, silent)
	t.Cleanup(closeIdle)
	return serveHTTP(t, newDoors(limiter, m, tracer, silent).proxy.before(proxy))
}

// tracer traces what inFrontOf serves. It is off but in TestTracedRequestsGoTheSameWay.
var tracer *tracing.Tracer

func TestTracedRequestsGoTheSameWay(t *testing.T) {
	c := startCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.url)
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	var err error
	if tracer, err = tracing.FromEnv(t.Context(), "shop", "orders-1", silent, tracingFailed(silent)); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]func(*testing.T){
		"events": TestProxyFlushesEventsAsTheyCome, "bodies": TestProxyStreamsBodiesBothWays, "upgrades": TestProxyPassesUpgrades,
		"trailers": TestProxyPassesTrailersOfRequests, "gRPC": TestProxySpeaksHTTP2ToTheAppForGRPC, "refusals": TestRefusedRequestsDoNotReachTheApp,
	} {
		t.Run(name, test)
	}
	traced := tracer
	tracer = nil
	if err := traced.Shutdown(t.Context()); err != nil || len(c.spans) == 0 {
		t.Errorf("%d spans, %v", len(c.spans), err)
	}
}

// client speaks HTTP/2 without TLS if it is to.
func client(t *testing.T, http2 bool) *http.Client {
	t.Helper()
	transport := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
	transport.Protocols.SetHTTP1(!http2)
	transport.Protocols.SetUnencryptedHTTP2(http2)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func do(t *testing.T, c *http.Client, r *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

func newRequest(t *testing.T, method, url string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestProxyChangesNothingButXForwardedFor(t *testing.T) {
	var got *http.Request
	sidecar := inFrontOf(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r }), roomy)
	r := newRequest(t, "DELETE", sidecar.URL+"/a%2Fb//c/../d;x?a=1;b=%zz&c", nil)
	r.Host = "shop.example:8080"
	for name, value := range map[string]string{
		"X-Forwarded-For": "6.6.6.6, 198.51.100.1", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "shop.example",
		"Forwarded": "for=198.51.100.1", "X-Other": "1",
	} {
		r.Header.Set(name, value)
	}
	do(t, client(t, false), r)

	if got.Method != "DELETE" || got.RequestURI != "/a%2Fb//c/../d;x?a=1;b=%zz&c" || got.Host != "shop.example:8080" {
		t.Errorf("the app got %s %s of %s", got.Method, got.RequestURI, got.Host)
	}
	want := http.Header{
		"X-Forwarded-For": {"6.6.6.6, 198.51.100.1", "127.0.0.1"}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"shop.example"},
		"Forwarded": {"for=198.51.100.1"}, "X-Other": {"1"}, "User-Agent": {"Go-http-client/1.1"},
	}
	if diff := cmp.Diff(want, got.Header); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

func TestProxyFlushesEventsAsTheyCome(t *testing.T) {
	next := make(chan string)
	sidecar := inFrontOf(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for event := range next {
			fmt.Fprintf(w, "data: %s\n\n", event)
			w.(http.Flusher).Flush()
		}
	}), roomy)
	for _, http2 := range []bool{false, true} {
		next = make(chan string)
		go func() { next <- "0" }()
		resp, err := client(t, http2).Do(newRequest(t, "GET", sidecar.URL, nil))
		if err != nil {
			t.Fatal(err)
		}
		events := bufio.NewReader(resp.Body)
		// The app sends the next event only when the last one has arrived.
		for i := range 3 {
			line, err := events.ReadString('\n')
			if want := fmt.Sprintf("data: %d\n", i); err != nil || line != want {
				t.Fatalf("got %q, %v, want %q", line, err, want)
			}
			if _, err := events.Discard(1); err != nil {
				t.Fatal(err)
			}
			if i < 2 {
				next <- fmt.Sprint(i + 1)
			}
		}
		close(next)
		resp.Body.Close()
	}
}

func TestProxyStreamsBodiesBothWays(t *testing.T) {
	sidecar := inFrontOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n)
	}), roomy)
	body, send := io.Pipe()
	go func() {
		for range 100 {
			_, _ = send.Write(make([]byte, 100_000))
		}
		send.Close()
	}()
	if _, got := do(t, client(t, false), newRequest(t, "POST", sidecar.URL, body)); got != "10000000" {
		t.Errorf("the app got %s bytes of 10000000", got)
	}
}

func TestProxyPassesUpgrades(t *testing.T) {
	sidecar := inFrontOf(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		rw.Flush()
		line, _ := rw.ReadString('\n')
		fmt.Fprint(rw, "echo "+line)
		rw.Flush()
	}), `limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog}]`)

	dial := func() (net.Conn, *bufio.Reader, *http.Response) {
		conn, err := net.Dial("tcp", sidecar.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		reader := bufio.NewReader(conn)
		resp, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		return conn, reader, resp
	}
	conn, reader, resp := dial()
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("RateLimit") == "" {
		t.Fatalf("got %d with %v", resp.StatusCode, resp.Header)
	}
	fmt.Fprint(conn, "hello\n")
	if line, err := reader.ReadString('\n'); err != nil || line != "echo hello\n" {
		t.Errorf("got %q, %v", line, err)
	}
	if _, _, resp := dial(); resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("the second upgrade got %d under a limit of 1", resp.StatusCode)
	}
}

// What follows an upgrade is not counted, and HTTP/2 would be many requests.
func TestProxyPassesNoUpgradeButWebSocket(t *testing.T) {
	var got http.Header
	sidecar := inFrontOf(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header }), roomy)
	r := newRequest(t, "GET", sidecar.URL, nil)
	for name, value := range map[string]string{"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "Http2-Settings": "AAMAAABk"} {
		r.Header.Set(name, value)
	}
	if resp, _ := do(t, client(t, false), r); resp.StatusCode != http.StatusOK {
		t.Errorf("got %d", resp.StatusCode)
	}
	for _, name := range []string{"Connection", "Upgrade", "Http2-Settings"} {
		if got.Get(name) != "" {
			t.Errorf("the app got %s: %s", name, got.Get(name))
		}
	}
}

func TestProxyPassesTrailersOfRequests(t *testing.T) {
	var got http.Header
	sidecar := inFrontOf(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		got = r.Trailer
	}), roomy)
	r := newRequest(t, "POST", sidecar.URL, io.MultiReader(strings.NewReader("body")))
	r.Trailer = http.Header{"X-Checksum": {"abc"}}
	do(t, client(t, false), r)
	if diff := cmp.Diff(http.Header{"X-Checksum": {"abc"}}, got); diff != "" {
		t.Errorf("trailers (-want +got):\n%s", diff)
	}
}

// Requests are counted, not connections.
func TestProxyLimitsStreamsOfOneHTTP2Connection(t *testing.T) {
	connections := map[string]bool{}
	var mu sync.Mutex
	app := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "app") })
	upstream, _ := url.Parse(serveHTTP(t, app).URL)
	limiter, _ := inMemory(t, `limits: [{name: x, requests: 5, window: 1h, algorithm: SlidingLog}]`)
	proxy, closeIdle := newProxy(upstream, silent)
	t.Cleanup(closeIdle)
	limited := httplimit.Middleware(limiter)(proxy)
	sidecar := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		connections[r.RemoteAddr] = true
		mu.Unlock()
		limited.ServeHTTP(w, r)
	}))
	c := client(t, true)
	// The first request makes the connection that all others share.
	do(t, c, newRequest(t, "GET", sidecar.URL, nil))
	var admitted, refused atomic.Int64
	var streams sync.WaitGroup
	for range 19 {
		streams.Go(func() {
			resp, err := c.Do(newRequest(t, "POST", sidecar.URL, strings.NewReader(strings.Repeat("x", 300_000))))
			if err != nil {
				t.Errorf("a stream failed: %v", err)
				return
			}
			defer resp.Body.Close()
			_, _ = io.Copy(io.Discard, resp.Body)
			switch {
			case resp.ProtoMajor != 2:
				t.Errorf("the answer is %s", resp.Proto)
			case resp.StatusCode == http.StatusOK:
				admitted.Add(1)
			case resp.StatusCode == http.StatusTooManyRequests:
				refused.Add(1)
			}
		})
	}
	streams.Wait()
	if admitted.Load() != 4 || refused.Load() != 15 || len(connections) != 1 {
		t.Errorf("of 20 streams of %d connections %d were admitted and %d refused, want 5 and 15 of 1",
			len(connections), 1+admitted.Load(), refused.Load())
	}
}

func TestProxySpeaksHTTP2ToTheAppForGRPC(t *testing.T) {
	sidecar := inFrontOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = io.Copy(w, r.Body)
		w.Header().Set("Grpc-Status", "0")
		w.Header().Set("X-Proto", r.Proto)
	}), `limits: [{name: x, requests: 1, window: 1h, algorithm: SlidingLog}]`)
	call := func() (*http.Response, string) {
		r := newRequest(t, "POST", sidecar.URL+"/shop.Orders/Create", strings.NewReader("message"))
		r.Header.Set("Content-Type", "application/grpc")
		r.Header.Set("Te", "trailers")
		return do(t, client(t, true), r)
	}
	if resp, body := call(); body != "message" || resp.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("got %d %q with trailers %v", resp.StatusCode, body, resp.Trailer)
	}
	if resp, body := call(); body != "" || resp.StatusCode != 200 || resp.Header.Get("Grpc-Status") != "8" {
		t.Errorf("a refusal is %d %q with %v", resp.StatusCode, body, resp.Header)
	}
}

func TestProxySpeaksHTTP1ToTheAppForGRPCWeb(t *testing.T) {
	sidecar := inFrontOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) }), roomy)
	for _, contentType := range []string{"application/grpc-web", "application/grpc-web-text+proto"} {
		r := newRequest(t, "POST", sidecar.URL, strings.NewReader("message"))
		r.Header.Set("Content-Type", contentType)
		if _, body := do(t, client(t, false), r); body != "HTTP/1.1" {
			t.Errorf("%s reaches the app by %s", contentType, body)
		}
	}
}

func TestProxyAnswersForAnAppThatIsDown(t *testing.T) {
	app := httptest.NewServer(http.NotFoundHandler())
	upstream, _ := url.Parse(app.URL)
	app.Close()
	proxy, _ := newProxy(upstream, silent)
	resp, body := do(t, client(t, false), newRequest(t, "GET", serveHTTP(t, proxy).URL, nil))
	var problem struct{ Status int }
	if err := json.Unmarshal([]byte(body), &problem); err != nil || resp.StatusCode != 502 || problem.Status != 502 ||
		resp.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("got %d %s %v", resp.StatusCode, body, resp.Header)
	}
}

func TestClientsCannotFillTheLogWithAppsThatDoNotAnswer(t *testing.T) {
	app := httptest.NewServer(http.NotFoundHandler()) // of HTTP/1 only
	t.Cleanup(app.Close)
	upstream, _ := url.Parse(app.URL)
	var log lines
	proxy, closeIdle := newProxy(upstream, slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(closeIdle)
	sidecar := serveHTTP(t, proxy)
	for range 5 {
		for contentType, want := range map[string]int{"application/grpc": 502, "text/plain": 404} {
			r := newRequest(t, "POST", sidecar.URL, nil)
			r.Header.Set("Content-Type", contentType)
			if resp, _ := do(t, client(t, false), r); resp.StatusCode != want {
				t.Errorf("%s got %d, want %d", contentType, resp.StatusCode, want)
			}
		}
	}
	if got := log.count("The app does not answer"); got != 1 {
		t.Errorf("five failures among answers make %d lines, want 1", got)
	}
}

func TestComplaintsAreDueOnceAMinute(t *testing.T) {
	var o occasion
	var told []time.Duration
	start := time.Now()
	for after := time.Duration(0); after <= 3*time.Minute; after += 20 * time.Second {
		if o.due(start.Add(after)) {
			told = append(told, after)
		}
	}
	if diff := cmp.Diff([]time.Duration{0, time.Minute, 2 * time.Minute, 3 * time.Minute}, told); diff != "" {
		t.Errorf("told after (-want +got):\n%s", diff)
	}
}

func TestLegacyHeadersAreToldOnce(t *testing.T) {
	app := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-RateLimit-Limit", "7") })
	for style, want := range map[string]string{"Legacy": "1000", "None": "7"} {
		sidecar := inFrontOf(t, app, `response: {headers: `+style+`}, `+roomy)
		resp, _ := do(t, client(t, false), newRequest(t, "GET", sidecar.URL, nil))
		if diff := cmp.Diff([]string{want}, resp.Header.Values("X-RateLimit-Limit")); diff != "" {
			t.Errorf("%s: X-RateLimit-Limit (-want +got):\n%s", style, diff)
		}
	}
}

func TestRefusedRequestsDoNotReachTheApp(t *testing.T) {
	var reached atomic.Int64
	sidecar := inFrontOf(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }),
		`limits: [{name: x, requests: 2, window: 1h, algorithm: SlidingLog}]`)
	for range 5 {
		do(t, client(t, false), newRequest(t, "POST", sidecar.URL, strings.NewReader("body")))
	}
	if reached.Load() != 2 {
		t.Errorf("%d requests reached the app under a limit of 2", reached.Load())
	}
}

var _ httplimit.Admitter = (*tallyman.Limiter)(nil)

// Some apps take a path that lacks its first slash for one that has it.
func TestProxyPassesOnThePathThatIsCounted(t *testing.T) {
	targets := make(chan string, 1)
	sidecar := inFrontOf(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { targets <- r.RequestURI }),
		`limits: [{name: x, requests: 0, window: 1h, match: [{path: {value: /login}}]}]`)
	for target, want := range map[string]string{
		"http:login": "/", "x:%2Flogin?a=1": "/?a=1", "http:": "/", "http://b/other?a": "/other?a", "/other#a?b#c": "/other%23a?b#c",
	} {
		conn, err := net.Dial("tcp", sidecar.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", target)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%s: %v, %v", target, resp, err)
		}
		if got := <-targets; got != want {
			t.Errorf("%s came to the app as %s, want %s", target, got, want)
		}
		conn.Close()
	}
}
