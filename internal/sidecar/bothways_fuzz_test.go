package sidecar

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tallyman-dev/tallyman/internal/sidecar/upstream"
)

// app is one that answers every request with the same bytes, whatever they are, and
// then closes the connection.
type app struct {
	url    *url.URL
	answer atomic.Pointer[[]byte]
	// heads are those of the requests, each as its lines in order.
	heads chan []string
}

func startApp(t testing.TB) *app {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &app{url: &url.URL{Scheme: "http", Host: listener.Addr().String()}, heads: make(chan []string, 16)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			a.serve(conn)
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		<-ended
	})
	return a
}

func (a *app) serve(conn net.Conn) {
	defer conn.Close()
	if head := readHead(bufio.NewReader(conn)); head != nil {
		a.heads <- head
		_, _ = conn.Write(*a.answer.Load())
	}
}

// readHead returns the lines of a request's head, sorted, since the order of headers
// with different names means nothing.
func readHead(r *bufio.Reader) (lines []string) {
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return nil
		}
		if line == "\r\n" {
			slices.Sort(lines[1:])
			return lines
		}
		lines = append(lines, strings.TrimSuffix(line, "\r\n"))
	}
}

// ways are servers of the two ways to an app, with a header of ours.
func ways(t testing.TB, app *url.URL) (quick, whole *httptest.Server, closeIdle func()) {
	failed := badGateway(silent)
	forwarder, closeQuick := newForwarder(app, failed)
	reverse, closeWhole := newReverseProxy(app, failed, silent)
	closeIdle = func() {
		closeQuick()
		closeWhole()
	}
	t.Cleanup(closeIdle)
	ours := func(next http.HandlerFunc) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Ratelimit", `"ours";r=1`)
			w.Header().Set("X-Ratelimit-Limit", "1")
			keepOurHeaders(next).ServeHTTP(w, r)
		})
	}
	quick = serveHTTP(t, ours(func(w http.ResponseWriter, r *http.Request) {
		if !upstream.IsPlain(r) {
			http.Error(w, "not plain", http.StatusTeapot)
			return
		}
		forwarder.ServeHTTP(w, r)
	}))
	whole = serveHTTP(t, ours(func(w http.ResponseWriter, r *http.Request) { reverse.ServeHTTP(newFinalHeaders(w), r) }))
	return quick, whole, closeIdle
}

// message is a response as a client sees it.
type message struct {
	Status          string
	Header, Trailer http.Header
	Body            string
}

// seen is all that a client sees.
type seen struct {
	Informed []message
	Final    message
	Rest     string // what comes after it
	// Aborted says that the connection was closed before the response's end. How much
	// of it came before that is a matter of time.
	Aborted bool
}

// see makes a request, which is to ask for the connection to be closed, and reads all
// that comes.
func see(t testing.TB, server *httptest.Server, request string) (s seen) {
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, request)
	method, _, _ := strings.Cut(request, " ")
	reader := bufio.NewReader(conn)
	for {
		resp, err := http.ReadResponse(reader, &http.Request{Method: method})
		if err != nil {
			return seen{Aborted: true}
		}
		m, err := readMessage(resp)
		switch {
		case err != nil:
			return seen{Aborted: true}
		case resp.StatusCode < 200:
			s.Informed = append(s.Informed, m)
		default:
			rest, _ := io.ReadAll(reader)
			s.Final, s.Rest = m, string(rest)
			return s
		}
	}
}

// readMessage leaves out what the proxy's server adds, and how a body that was read is framed.
func readMessage(resp *http.Response) (message, error) {
	body, err := io.ReadAll(resp.Body)
	if resp.ContentLength == int64(len(body)) {
		resp.Header.Del("Content-Length")
	}
	resp.Header.Del("Date")
	if names, announced := resp.Header["Trailer"]; announced { // of HEAD, in any order
		resp.Header["Trailer"] = slices.Sorted(strings.SplitSeq(names[0], ", "))
	}
	return message{resp.Status, resp.Header, resp.Trailer, string(body)}, err
}

func get(method string) string {
	return method + " /a?b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
}

// The seeds are what apps do, and what they should not.
var answers = []string{
	"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Type: text/plain\r\n\r\nbody",
	"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n<htm",
	"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nbody",
	"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nbody",
	"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbody",
	"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nbody",
	"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n9\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbodyX",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum, X-Other\r\n\r\n4\r\nbody\r\n0\r\nX-Sum: 1\r\nX-Other: 2\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nX-Sum: 1\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n4\r\nbody\r\n0\r\nX-Sum: 1\r\nX-Late: 2\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTrailer: Content-Length\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\n\r\nuntil the end",
	"HTTP/1.0 200 OK\r\nX: y\r\n\r\nuntil the end",
	"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 4\r\n\r\nbody",
	"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n",
	"HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nbody",
	"HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\nEtag: \"x\"\r\n\r\n",
	"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </b>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\nRatelimit: app\r\n\r\nbody",
	"HTTP/1.1 103 Early Hints\r\nRatelimit: x\r\nX-Ratelimit-Limit: 7\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nbody",
	"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody",
	"HTTP/1.1 103 Early Hints\r\n\r\n",
	"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
	"HTTP/1.1 101 Switching Protocols\r\n\r\n",
	"HTTP/1.1 200 OK\r\nConnection: X-Hop, close\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: x\r\nUpgrade: h2c\r\nX-End: 1\r\nX-End: 2\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nRatelimit: \"app\";r=2\r\nX-Ratelimit-Limit: 7\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbodyHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
	"HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nX : y\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nX: folded\r\n  line\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nDate: Mon, 30 Nov 2026 00:00:00 GMT\r\nPragma: no-cache\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nbody",
	"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 100_000) + "\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", upstream.MaxResponseHead) + "\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + strings.Repeat("x", 300_000),
	"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 20 OK\r\n\r\n",
	"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n",
	"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 OK\r\n",
	"garbage",
	"",
}

// Whatever an app answers, a client sees the same by both ways.
func FuzzResponsesAreAlikeByBothWays(f *testing.F) {
	for _, answer := range answers {
		for _, method := range []string{"GET", "HEAD"} {
			f.Add(method, []byte(answer))
		}
	}
	app := startApp(f)
	quick, whole, closeIdle := ways(f, app.url)
	f.Fuzz(func(t *testing.T, method string, answer []byte) {
		if method != "HEAD" && method != "OPTIONS" {
			method = "GET"
		}
		app.answer.Store(&answer)
		// With what the last answer has left there, http.Transport can fail.
		closeIdle()
		got, want := see(t, quick, get(method)), see(t, whole, get(method))
		for len(app.heads) > 0 {
			<-app.heads
		}
		if diff := cmp.Diff(want, got); diff != "" || got.Rest != "" {
			t.Errorf("%s answered with %q (-by ReverseProxy +by the quick way):\n%s", method, bytes.TrimSpace(answer), diff)
		}
	})
}

// Whatever a client asks, the app is asked the same by both ways.
func FuzzRequestsAreAlikeByBothWays(f *testing.F) {
	for _, request := range []string{
		"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
		"HEAD /a%2Fb//c/../d;x?a=1;b=%zz&c HTTP/1.1\r\nHost: shop.example:8080\r\nUser-Agent: u\r\nAccept: a\r\nAccept: b\r\n\r\n",
		"GET /?x=\"<>é HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET //h/x? HTTP/1.1\r\nHost: h\r\n\r\n",
		"OPTIONS /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nOrigin: o\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 5.6.7.8\r\nForwarded: for=x\r\nX-Forwarded-Host: a\r\nX-Forwarded-Proto: https\r\nVia: v\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\nKeep-Alive: 5\r\nProxy-Connection: x\r\nProxy-Authorization: y\r\nProxy-Authenticate: z\r\nHttp2-Settings: s\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nX:  spaces \t\r\nY: \x80\xff\r\nZ:\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: [::1]:80\r\nCookie: a=b; c=d\r\nRange: bytes=0-1\r\nIf-None-Match: \"x\"\r\n\r\n",
	} {
		f.Add([]byte(request))
	}
	app := startApp(f)
	answer := []byte("HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
	app.answer.Store(&answer)
	quick, whole, closeIdle := ways(f, app.url)
	f.Fuzz(func(t *testing.T, request []byte) {
		reader := bufio.NewReader(bytes.NewReader(request))
		r, err := http.ReadRequest(reader)
		isWhole := reader.Buffered() == 0 && bytes.HasSuffix(request, []byte("\r\n\r\n"))
		if err != nil || !isWhole || !upstream.IsPlain(r) || hasOddUserAgent(r) {
			return
		}
		closeIdle()
		closing := strings.TrimSuffix(string(request), "\r\n") + "Connection: close\r\n\r\n"
		want, reached := see(t, whole, closing), [][]string{}
		got := see(t, quick, closing)
		for len(app.heads) > 0 {
			reached = append(reached, <-app.heads)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q was answered (-by ReverseProxy +by the quick way):\n%s", request, diff)
		}
		if got.Final.Status != "204 No Content" { // by the server, before it came to the proxy
			return
		}
		if len(reached) != 2 || !slices.Equal(reached[0], reached[1]) {
			t.Errorf("%q came to the app as\n%s", request, fmt.Sprint(reached))
		}
	})
}

// hasOddUserAgent says whether there is an empty one or several: net/http sends the
// first and no empty one, where the quick way sends what there is.
func hasOddUserAgent(r *http.Request) bool {
	agents, present := r.Header["User-Agent"]
	return present && (len(agents) != 1 || strings.TrimSpace(agents[0]) == "")
}
