package main

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// visitAll makes visits for 20 ms and returns what came of them.
func visitAll(t *testing.T, v visits) (got visited) {
	t.Helper()
	v.Connections, v.WarmUp, v.Duration = 4, 5*time.Millisecond, 20*time.Millisecond
	in, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := visit(strings.NewReader(string(in)), &out); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
		t.Fatal(err)
	}
	return got
}

// serveAnswers is the app that proxies are measured with.
func serveAnswers(t *testing.T) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answerAll(conn)
		}
	}()
	return listener.Addr().String()
}

func TestClientsCountAnswers(t *testing.T) {
	got := visitAll(t, visits{Addr: serveAnswers(t)})
	if got.Requests == 0 || got.All < got.Requests || got.Errors != 0 || got.P50 == 0 || got.P99 < got.P50 {
		t.Errorf("got %+v", got)
	}
}

func TestClientsKeepTheirRate(t *testing.T) {
	got := visitAll(t, visits{Addr: serveAnswers(t), PerSecond: 1000})
	if got.All != 25 || got.Requests != 20 || got.Errors != 0 {
		t.Errorf("in 25 ms at 1000/s, of which 20 count: %+v", got)
	}
}

func TestClientsCountWhatIsNoAnswer(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"refused":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) },
		"unlimited": func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() },
	} {
		server := httptest.NewServer(handler)
		if got := visitAll(t, visits{Addr: server.Listener.Addr().String()}); got.Errors != 4 || got.All != 0 {
			t.Errorf("%s: %+v", name, got)
		}
		server.Close()
	}
}

func TestReadsMemory(t *testing.T) {
	got, err := memoryIn("Name:\tsidecar\nVmHWM:\t    4096 kB\nVmRSS:\t    2048 kB\n", "VmRSS:")
	if err != nil || got != 2 {
		t.Errorf("%v, %v, want 2", got, err)
	}
	if _, err := memoryIn("Name:\tsidecar\n", "VmRSS:"); err == nil {
		t.Error("read what is not there")
	}
}
