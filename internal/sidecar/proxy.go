package sidecar

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tallyman-dev/tallyman/internal/respond"
	"github.com/tallyman-dev/tallyman/internal/sidecar/upstream"
	"github.com/tallyman-dev/tallyman/pkg/tallyman/httplimit"
)

// newProxy returns the way to the app. It passes on bodies, trailers, upgrades
// and streams as they come, and changes nothing but X-Forwarded-For, to which it
// appends the peer. There are two ways, which clients cannot tell apart: a quick one
// for plain requests, and one for all.
func newProxy(app *url.URL, log *slog.Logger) (proxy http.Handler, closeIdle func()) {
	failed := badGateway(log)
	quick, closeQuick := newForwarder(app, failed)
	whole, closeWhole := newReverseProxy(app, failed, log)
	choose := func(w http.ResponseWriter, r *http.Request) {
		if upstream.IsPlain(r) && !httplimit.IsGRPC(r) {
			quick.ServeHTTP(w, r)
		} else {
			whole.ServeHTTP(newFinalHeaders(w), r)
		}
	}
	return keepOurHeaders(http.HandlerFunc(choose)), func() {
		closeQuick()
		closeWhole()
	}
}

// failureHandler answers a request that the app does not.
type failureHandler func(http.ResponseWriter, *http.Request, error)

func newForwarder(app *url.URL, failed failureHandler) (f *upstream.Forwarder, closeIdle func()) {
	pool := upstream.NewPool(func(ctx context.Context) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", net.JoinHostPort(app.Hostname(), cmp.Or(app.Port(), "80")))
	})
	return &upstream.Forwarder{
		Pool: pool, BufferPool: &buffers{}, ModifyResponse: modifyResponse, ErrorHandler: failed,
	}, pool.CloseIdle
}

func newReverseProxy(app *url.URL, failed failureHandler, log *slog.Logger) (p *httputil.ReverseProxy, closeIdle func()) {
	transport := newTransport()
	return &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { rewrite(r, app) },
		Transport:      transport,
		FlushInterval:  -1,
		BufferPool:     &buffers{},
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ModifyResponse: modifyResponse,
		ErrorHandler:   failed,
	}, transport.closeIdle
}

// badGateway answers for an app that does not.
func badGateway(log *slog.Logger) failureHandler {
	var complaint occasion
	return func(w http.ResponseWriter, r *http.Request, err error) {
		// Else it is the client that has gone.
		if r.Context().Err() == nil && complaint.due(time.Now()) {
			log.Warn("The app does not answer", "error", err)
		}
		respond.Problem(w, http.StatusBadGateway, "The app did not answer.")
	}
}

func modifyResponse(r *http.Response) error {
	if r.StatusCode < 100 { // net/http panics when it is to send one
		return fmt.Errorf("the app's response has the status %03d, which is none", r.StatusCode)
	}
	dropLegacyHeaders(r)
	return nil
}

// complainEvery is the shortest time between two lines of the log about the same, such
// as an app that does not answer. Not the change of its state is what is told: a client
// can bring that about as often as it likes, with gRPC to an app that has none.
const complainEvery = time.Minute

// occasion is when something was last told. It is safe for concurrent use.
type occasion struct{ last atomic.Pointer[time.Time] }

// due says whether it is time to tell again, and then notes that it is told.
func (o *occasion) due(now time.Time) bool {
	last := o.last.Load()
	return (last == nil || now.Sub(*last) >= complainEvery) && o.last.CompareAndSwap(last, &now)
}

// forwarded are headers that ReverseProxy removes and that proxies in front of
// us have set: whether to believe them is the app's business, as without us.
var forwarded = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

func rewrite(r *httputil.ProxyRequest, app *url.URL) {
	r.Out.URL.Scheme, r.Out.URL.Host = app.Scheme, app.Host
	// A target such as http:login has no path, and is counted as one of /.
	r.Out.URL.Opaque = ""
	r.Out.URL.RawQuery = r.In.URL.RawQuery // as sent, also where it cannot be parsed
	r.Out.Trailer = r.In.Trailer           // the same map: its values come after the body
	if !strings.EqualFold(r.Out.Header.Get("Upgrade"), "websocket") {
		// What follows an upgrade is not counted. A WebSocket is one request;
		// HTTP/2 would be a tunnel for many.
		r.Out.Header.Del("Connection")
		r.Out.Header.Del("Upgrade")
		r.Out.Header.Del("Http2-Settings")
	}
	for _, name := range forwarded {
		if values, ok := r.In.Header[name]; ok {
			r.Out.Header[name] = values
		}
	}
	if peer, _, err := net.SplitHostPort(r.In.RemoteAddr); err == nil {
		before := r.Out.Header["X-Forwarded-For"]
		r.Out.Header["X-Forwarded-For"] = append(slices.Clip(before), peer)
	}
}

// transport speaks HTTP/2 without TLS for gRPC, which is nothing else, and
// HTTP/1.1, which every app speaks, for all the rest.
type transport struct{ http1, http2 *http.Transport }

var dialer = &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}

func newTransport() *transport {
	base := func() *http.Transport {
		return &http.Transport{
			DialContext:     dialer.DialContext,
			MaxIdleConns:    1024,
			IdleConnTimeout: 90 * time.Second,
			// All idle connections are to one app.
			MaxIdleConnsPerHost:    1024,
			MaxResponseHeaderBytes: upstream.MaxResponseHead,
			// The body goes through as the app has sent it.
			DisableCompression: true,
			Protocols:          new(http.Protocols),
		}
	}
	t := &transport{http1: base(), http2: base()}
	t.http1.Protocols.SetHTTP1(true)
	t.http2.Protocols.SetUnencryptedHTTP2(true)
	return t
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if httplimit.IsGRPC(r) {
		return t.http2.RoundTrip(r)
	}
	return t.http1.RoundTrip(r)
}

func (t *transport) closeIdle() {
	t.http1.CloseIdleConnections()
	t.http2.CloseIdleConnections()
}

// buffers are for copying bodies.
type buffers struct{ pool sync.Pool }

// bufferSize is that of ReverseProxy itself.
const bufferSize = 32 << 10

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	if buffer, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return buffer[:]
	}
	return make([]byte, bufferSize)
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(buffer []byte) { b.pool.Put((*[bufferSize]byte)(buffer)) }
