package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/sidecar"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
	"github.com/tallyman-dev/tallyman/pkg/tallyman/httplimit"
)

// way sends a request by way of a limiter, and returns the status and the headers
// that its client gets.
type way func(t *testing.T, r *http.Request) (status int, header http.Header)

// The ways that have no statuses of HTTP: a refusal stands for 429, whatever the policy
// says.
const (
	rateLimit = "Envoy's rate limit service"
	calls     = "gRPC interceptors"
)

// ways open the ways in to a limiter with these options.
var ways = map[string]func(*testing.T, tallyman.Options) way{
	"reverse proxy": func(t *testing.T, o tallyman.Options) way { return direct(serve(t, o).proxy) },
	"middleware":    func(t *testing.T, o tallyman.Options) way { return direct(middleware(t, o)) },
	"transport":     func(t *testing.T, o tallyman.Options) way { return transport(limiter(t, o), app(t)) },
	calls:           func(t *testing.T, o tallyman.Options) way { return call(dial(t, interceptors(t, limiter(t, o)))) },
	"check API":     func(t *testing.T, o tallyman.Options) way { return check(serve(t, o).api) },
	"forward-auth":  func(t *testing.T, o tallyman.Options) way { return forwardAuth(serve(t, o).api + "/v1/auth") },
	"forward-auth for nginx": func(t *testing.T, o tallyman.Options) way {
		return forwardAuth(serve(t, o).api + "/v1/auth/nginx")
	},
	"Envoy's external authorization": func(t *testing.T, o tallyman.Options) way { return externalAuthorization(dial(t, serve(t, o).grpc)) },
	rateLimit:                        func(t *testing.T, o tallyman.Options) way { return rateLimitService(dial(t, serve(t, o).grpc)) },
}

// services are where a sidecar listens.
type services struct{ proxy, api, grpc string }

// serve runs a sidecar in front of an app until the test ends.
func serve(t *testing.T, o tallyman.Options) services {
	t.Helper()
	upstream, err := url.Parse(app(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	listening, ended := make(announcements, 3), make(chan error, 1)
	go func() {
		ended <- sidecar.Run(ctx, sidecar.Config{
			Limiter: o, Listen: "127.0.0.1:0", Upstream: upstream, CheckListen: "127.0.0.1:0", GRPCListen: "127.0.0.1:0",
		}, slog.New(slog.NewJSONHandler(listening, nil)))
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the sidecar ended: %v", err)
		}
	})
	addresses := map[string]string{}
	for len(addresses) < cap(listening) {
		select {
		case a := <-listening:
			addresses[a.Service] = a.Address
		case err := <-ended:
			ended <- nil
			t.Fatalf("the sidecar ended: %v", err)
		}
	}
	return services{
		proxy: "http://" + addresses["proxy"], api: "http://" + addresses["check API"], grpc: addresses["Envoy gRPC"],
	}
}

// announcements is a log that passes on where a sidecar listens.
type announcements chan announcement

type announcement struct{ Msg, Service, Address string }

// Write implements io.Writer.
func (c announcements) Write(line []byte) (int, error) {
	var a announcement
	if json.Unmarshal(line, &a) == nil && a.Msg == "Listening" {
		c <- a
	}
	return len(line), nil
}

// app serves until the test ends, and returns its URL.
func app(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

var handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

// limiter is the library's.
func limiter(t *testing.T, o tallyman.Options) *tallyman.Limiter {
	t.Helper()
	l, err := tallyman.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.WithoutCancel(t.Context())) })
	return l
}

// middleware serves an app with the library in front, and returns its URL.
func middleware(t *testing.T, o tallyman.Options) string {
	t.Helper()
	server := httptest.NewServer(httplimit.Middleware(limiter(t, o))(handler))
	t.Cleanup(server.Close)
	return server.URL
}

// transport sends requests by a client that asks before it does. Nobody is told of
// limits that admit: what the client has learned of them is the decision.
func transport(l *tallyman.Limiter, base string) way {
	return func(t *testing.T, r *http.Request) (int, http.Header) {
		asked := &listener{Limiter: l}
		out, err := http.NewRequestWithContext(t.Context(), r.Method, base+r.RequestURI, nil)
		if err != nil {
			t.Fatal(err)
		}
		out.Header, out.Host = r.Header, r.Host
		resp, err := (&http.Client{Transport: &httplimit.Transport{Admitter: asked}}).Do(out)
		status := asked.heard.Response.StatusCode
		switch _, refused := errors.AsType[*httplimit.RefusedError](err); {
		case err == nil:
			status = resp.StatusCode
			_ = resp.Body.Close()
		case !refused:
			t.Fatal(err)
		}
		header := http.Header{}
		httplimit.SetHeaders(header, asked.heard)
		return status, header
	}
}

// listener hears what a limiter decides.
type listener struct {
	*tallyman.Limiter
	heard tallyman.Decision
}

// Admit implements httplimit.Admitter.
func (l *listener) Admit(ctx context.Context, r tallyman.Request) tallyman.Decision {
	l.heard = l.Limiter.Admit(ctx, r)
	return l.heard
}

// direct sends requests as they are.
func direct(base string) way {
	return func(t *testing.T, r *http.Request) (int, http.Header) {
		resp, _ := do(t, r.Method, base+r.RequestURI, nil, func(out *http.Request) {
			out.Header, out.Host = r.Header, r.Host
		})
		return resp.StatusCode, resp.Header
	}
}

// forwardAuth asks as a proxy does.
func forwardAuth(url string) way {
	return func(t *testing.T, r *http.Request) (int, http.Header) {
		resp, _ := do(t, "GET", url, nil, func(out *http.Request) {
			out.Header = r.Header.Clone()
			out.Header.Set("X-Forwarded-Method", r.Method)
			out.Header.Set("X-Forwarded-Uri", r.RequestURI)
			out.Header.Set("X-Forwarded-Host", r.Host)
		})
		if status := resp.Header.Get("X-Tallyman-Status"); status != "" {
			return number(t, status), resp.Header
		}
		return resp.StatusCode, resp.Header
	}
}

// check asks by JSON. Who does so knows the client's address.
func check(base string) way {
	return func(t *testing.T, r *http.Request) (int, http.Header) {
		addresses := strings.Split(r.Header.Get("X-Forwarded-For"), ",")
		body, err := json.Marshal(map[string]any{
			"method": r.Method, "host": r.Host, "path": r.RequestURI, "headers": r.Header,
			"clientIP": strings.TrimSpace(addresses[len(addresses)-1]),
		})
		if err != nil {
			t.Fatal(err)
		}
		resp, text := do(t, "POST", base+"/v1/check", bytes.NewReader(body), func(*http.Request) {})
		var decision struct {
			Allowed    bool
			StatusCode int
			Headers    map[string]string
		}
		if err := json.Unmarshal(text, &decision); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("got %d %s", resp.StatusCode, text)
		}
		header := http.Header{}
		for name, value := range decision.Headers {
			header.Set(name, value)
		}
		if decision.Allowed {
			return http.StatusOK, header
		}
		return decision.StatusCode, header
	}
}

func do(t *testing.T, method, url string, body io.Reader, change func(*http.Request)) (*http.Response, []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	change(r)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, text
}
