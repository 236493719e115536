package sidecar

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// byBothWays tests what holds whichever way a request takes to the app.
func byBothWays(t *testing.T, app *url.URL, test func(t *testing.T, proxy *httptest.Server)) {
	t.Helper()
	quick, whole, _ := ways(t, app)
	for name, proxy := range map[string]*httptest.Server{"quick": quick, "whole": whole} {
		t.Run(name, func(t *testing.T) { test(t, proxy) })
	}
}

func urlOf(t testing.TB, server *httptest.Server) *url.URL {
	t.Helper()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestAppsLearnThatTheClientHasGone(t *testing.T) {
	for name, start := range map[string]func(http.ResponseWriter){
		"while it thinks": func(http.ResponseWriter) {},
		"while it streams": func(w http.ResponseWriter) {
			fmt.Fprint(w, "first")
			w.(http.Flusher).Flush()
		},
	} {
		t.Run(name, func(t *testing.T) {
			arrived, gone := make(chan struct{}), make(chan struct{})
			app := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				start(w)
				arrived <- struct{}{}
				<-r.Context().Done()
				gone <- struct{}{}
			}))
			byBothWays(t, urlOf(t, app), func(t *testing.T, proxy *httptest.Server) {
				conn, err := net.Dial("tcp", proxy.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
				<-arrived
				conn.Close()
				select {
				case <-gone:
				case <-time.After(20 * time.Second):
					t.Fatal("the app has not learnt of it")
				}
			})
		})
	}
}

// rawApp serves connections one after the other as it is told, and counts what it gets.
func rawApp(t *testing.T, serve func(conn net.Conn, requests *bufio.Reader)) *url.URL {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				serve(conn, bufio.NewReader(conn))
			})
		}
	})
	t.Cleanup(func() { // after the proxies, which close their connections
		listener.Close()
		running.Wait()
	})
	return &url.URL{Scheme: "http", Host: listener.Addr().String()}
}

const short = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func TestRequestsSurviveAnAppThatClosesIdleConnections(t *testing.T) {
	for name, serve := range map[string]func(conn net.Conn, requests *bufio.Reader){
		"after each answer": func(conn net.Conn, requests *bufio.Reader) {
			if readHead(requests) != nil {
				_, _ = io.WriteString(conn, short)
			}
		},
		"as the next request comes": func(conn net.Conn, requests *bufio.Reader) {
			if readHead(requests) != nil {
				_, _ = io.WriteString(conn, short)
				_, _ = requests.ReadByte()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			byBothWays(t, rawApp(t, serve), func(t *testing.T, proxy *httptest.Server) {
				c := client(t, false)
				for i := range 50 {
					if resp, body := do(t, c, newRequest(t, "GET", proxy.URL, nil)); resp.StatusCode != 200 || body != "ok" {
						t.Fatalf("request %d got %d %q", i, resp.StatusCode, body)
					}
				}
			})
		})
	}
}

// An app that has begun to answer, or that refuses to, is not asked again.
func TestRequestsThatAnAppHasTakenAreNotSentAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		first, second string // answers on one connection
		reached       int64
	}{
		"closed without an answer":                {"", "", 1},
		"closed within the head":                  {"HTTP/1.1 200", "", 1},
		"closed within the head, used connection": {short, "HTTP/1.1 200", 2},
	} {
		t.Run(name, func(t *testing.T) {
			var reached atomic.Int64
			app := rawApp(t, func(conn net.Conn, requests *bufio.Reader) {
				for _, answer := range []string{tc.first, tc.second} {
					if readHead(requests) == nil {
						return
					}
					reached.Add(1)
					if _, _ = io.WriteString(conn, answer); answer != short {
						return
					}
				}
			})
			byBothWays(t, app, func(t *testing.T, proxy *httptest.Server) {
				reached.Store(0)
				c := client(t, false)
				if tc.first == short {
					do(t, c, newRequest(t, "GET", proxy.URL, nil))
				}
				resp, _ := do(t, c, newRequest(t, "GET", proxy.URL, nil))
				if resp.StatusCode != http.StatusBadGateway || reached.Load() != tc.reached {
					t.Errorf("got %d after %d requests of the app, want 502 after %d", resp.StatusCode, reached.Load(), tc.reached)
				}
			})
		})
	}
}

// What an app sends without having been asked would else be the answer to whoever
// comes next, as it can be by http.Transport, which looks for it in the background.
func TestAnswersThatNobodyAskedForReachNobody(t *testing.T) {
	sent := make(chan struct{}, 1)
	app := rawApp(t, func(conn net.Conn, requests *bufio.Reader) {
		for readHead(requests) != nil {
			_, _ = io.WriteString(conn, short)
			time.Sleep(time.Millisecond) // so that it is not read with the answer
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
			sent <- struct{}{}
		}
	})
	quick, _, _ := ways(t, app)
	c := client(t, false)
	for range 20 {
		if _, body := do(t, c, newRequest(t, "GET", quick.URL, nil)); body != "ok" {
			t.Fatalf("got %q", body)
		}
		<-sent
	}
}

func TestAnswersReachThoseWhoAsked(t *testing.T) {
	app := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := r.URL.Path + strings.Repeat("x", len(r.URL.Path)*1000)
		if strings.HasSuffix(r.URL.Path, "1") { // chunked
			fmt.Fprint(w, text[:1])
			w.(http.Flusher).Flush()
			text = text[1:]
		}
		if strings.HasSuffix(r.URL.Path, "2") {
			w.Header().Set("Connection", "close")
		}
		fmt.Fprint(w, text)
	}))
	byBothWays(t, urlOf(t, app), func(t *testing.T, proxy *httptest.Server) {
		c := client(t, false)
		var clients sync.WaitGroup
		for n := range 16 {
			clients.Go(func() {
				for i := range 30 {
					path := fmt.Sprintf("/%d/%d", n, i)
					resp, err := c.Do(newRequest(t, "GET", proxy.URL+path, nil))
					if err != nil {
						t.Error(err)
						return
					}
					body, err := io.ReadAll(resp.Body)
					resp.Body.Close()
					if err != nil || string(body) != path+strings.Repeat("x", len(path)*1000) {
						t.Errorf("%s got %.20q of %d bytes, %v", path, body, len(body), err)
					}
				}
			})
		}
		clients.Wait()
	})
}

func TestProxyFindsAnAppThatIsStartedAgain(t *testing.T) {
	answer := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "app") })
	first := httptest.NewServer(answer)
	address := first.Listener.Addr().String()
	quick, whole, _ := ways(t, urlOf(t, first))
	proxies := []*httptest.Server{quick, whole}
	expect := func(status int) {
		t.Helper()
		for _, proxy := range proxies {
			if resp, _ := do(t, client(t, false), newRequest(t, "GET", proxy.URL, nil)); resp.StatusCode != status {
				t.Errorf("got %d, want %d", resp.StatusCode, status)
			}
		}
	}
	expect(200)
	first.CloseClientConnections()
	first.Close()
	expect(502)
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	second := httptest.NewUnstartedServer(answer)
	second.Listener.Close()
	second.Listener = listener
	second.Start()
	defer second.Close()
	expect(200)
}
