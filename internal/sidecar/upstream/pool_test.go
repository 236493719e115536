package upstream

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pipes is an app within the test: each connection to it is a net.Pipe.
type pipes struct{ dialled, open atomic.Int64 }

func (p *pipes) dial(context.Context) (net.Conn, error) {
	p.dialled.Add(1)
	p.open.Add(1)
	ours, theirs := net.Pipe()
	go func() {
		defer p.open.Add(-1)
		defer theirs.Close()
		reader := bufio.NewReader(theirs)
		for {
			if _, err := http.ReadRequest(reader); err != nil {
				return
			}
			_, _ = io.WriteString(theirs, "HTTP/1.1 204 No Content\r\n\r\n")
		}
	}()
	return ours, nil
}

// ask makes so many requests at once, each by a connection of its own.
func ask(t *testing.T, p *Pool, n int) {
	t.Helper()
	var conns []*conn
	for range n {
		_, c, stop, err := p.exchange(httptest.NewRequest("GET", "/", nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		stop()
		conns = append(conns, c)
	}
	for _, c := range conns {
		p.put(c)
	}
}

func TestConnectionsAreUsedAgain(t *testing.T) {
	var app pipes
	p := NewPool(app.dial)
	ask(t, p, 3)
	ask(t, p, 3)
	ask(t, p, 1)
	if got := app.dialled.Load(); got != 3 {
		t.Errorf("%d connections, want 3", got)
	}
	p.CloseIdle()
}

func TestConnectionsThatAreIdleForLongAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var app pipes
		p := NewPool(app.dial)
		open := func() int64 {
			synctest.Wait()
			return app.open.Load()
		}
		ask(t, p, 3)
		time.Sleep(idleTimeout / 2)
		ask(t, p, 1) // by the one used last
		time.Sleep(idleTimeout/2 + time.Second)
		if got := open(); got != 1 {
			t.Errorf("after one timeout %d are open, want 1", got)
		}
		time.Sleep(idleTimeout / 2)
		if got := open(); got != 0 {
			t.Errorf("after two timeouts %d are open", got)
		}
		ask(t, p, 1)
		p.CloseIdle()
		if got := open(); got != 0 {
			t.Errorf("after CloseIdle %d are open", got)
		}
	})
}

func TestIdleConnectionsAreBounded(t *testing.T) {
	var app pipes
	p := NewPool(app.dial)
	ask(t, p, maxIdle+1)
	if got := len(p.idle); got != maxIdle {
		t.Errorf("%d are idle, want %d", got, maxIdle)
	}
	p.CloseIdle()
}

func TestPlainRequests(t *testing.T) {
	for request, want := range map[string]bool{
		"GET / HTTP/1.1\r\nHost: h\r\n":                                           true,
		"HEAD /a?b HTTP/1.1\r\nHost: h\r\nConnection: Keep-Alive\r\n":             true,
		"OPTIONS / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n":                  true,
		"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n":                      true,
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n":                     false,
		"DELETE / HTTP/1.1\r\nHost: h\r\n":                                        false,
		"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n":                      false,
		"GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n":             false,
		"GET / HTTP/1.0\r\nHost: h\r\n":                                           false,
		"GET / HTTP/1.1\r\nHost:\r\n":                                             false,
		"GET / HTTP/1.1\r\nHost: [fe80::1%en0]\r\n":                               false,
		"GET http://h/ HTTP/1.1\r\nHost: h\r\n":                                   false,
		"GET http:login HTTP/1.1\r\nHost: h\r\n":                                  false,
		"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: x\r\n":      false,
		"GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, X-Hop\r\n":          false,
		"GET / HTTP/1.1\r\nHost: h\r\nConnection: X-Hop\r\nConnection: close\r\n": false,
		"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\n":                           false,
		"GET / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n":                   false,
		"GET / HTTP/1.1\r\nHost: h\r\nTE: trailers\r\n":                           false,
		"GET / HTTP/1.1\r\nHost: h\r\nTrailer: X\r\n":                             false,
	} {
		var got atomic.Bool
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got.Store(IsPlain(r)) }))
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, request+"\r\n0\r\n\r\n") // with a body, for those that have one
		if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || resp.StatusCode/100 > 2 {
			t.Errorf("%q: %v, %v", request, resp, err)
		}
		conn.Close()
		server.Close()
		if got.Load() != want {
			t.Errorf("%q is plain: %v", strings.TrimSpace(request), got.Load())
		}
	}
}
