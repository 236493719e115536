package reach

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/streaming/pkg/httpstream"

	"github.com/tallyman-dev/tallyman/internal/operator"
)

// answering is a client for a server with one answer.
func answering(t *testing.T, status int, mediaType, body string) *Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(operator.Header) == "" {
			t.Error("the header is missing")
		}
		w.Header().Set("Content-Type", mediaType)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(server.Close)
	c, err := NewClient(server.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestARefusalIsToldInItsOwnWords(t *testing.T) {
	const problem = "application/problem+json"
	for name, c := range map[string]struct{ mediaType, body, want string }{
		"a detail":              {problem, `{"title": "Not Found", "detail": "there is no such limit"}`, "there is no such limit"},
		"a title only":          {problem + "; charset=utf-8", `{"title": "Not Found"}`, "Not Found"},
		"no problem document":   {"text/plain", "nothing here\n", "404 Not Found: nothing here"},
		"a broken one":          {problem, `{"title"`, `404 Not Found: {"title"`},
		"a long detail":         {problem, `{"detail": "` + strings.Repeat("a", 1<<20) + `"}`, strings.Repeat("a", maxDetail)},
		"much of somebody else": {"text/html", strings.Repeat("a", 1<<20), "404 Not Found: " + strings.Repeat("a", maxDetail)},
	} {
		_, err := answering(t, http.StatusNotFound, c.mediaType, c.body).Reset(t.Context(), operator.Change{})
		refusal, ok := errors.AsType[*Refusal](err)
		if !ok || refusal.Status != http.StatusNotFound || refusal.Detail != c.want {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestAnAnswerThatIsNotUnderstoodIsNoRefusal(t *testing.T) {
	_, err := answering(t, http.StatusOK, "text/html", "<html>").Top(t.Context(), false)
	if err == nil || errors.As(err, new(*Refusal)) || errors.As(err, new(*Unreached)) || !strings.Contains(err.Error(), operator.PathTop) {
		t.Errorf("got %v", err)
	}
}

func TestAnotherServersAnswerIsNone(t *testing.T) {
	for _, body := range []string{"{}", "null", `{"status": "ok"}`} {
		c := answering(t, http.StatusOK, "application/json", body)
		_, explain := c.Explain(t.Context(), operator.Request{})
		_, top := c.Top(t.Context(), false)
		_, reset := c.Reset(t.Context(), operator.Change{})
		_, refund := c.Refund(t.Context(), operator.Change{})
		_, store := c.Store(t.Context())
		for i, err := range []error{explain, top, reset, refund, store} {
			if err == nil || !strings.Contains(err.Error(), "another server") {
				t.Errorf("%s answers question %d: %v", body, i, err)
			}
		}
	}
}

func TestAnAnswerWithoutEndIsCutShort(t *testing.T) {
	_, err := answering(t, http.StatusOK, "application/json", strings.Repeat(" ", maxAnswer+1)).Top(t.Context(), false)
	if err == nil || !strings.Contains(err.Error(), "is longer than 64 MiB") {
		t.Errorf("got %v", err)
	}
}

func TestWhatDidNotGetThereIsTold(t *testing.T) {
	c, err := NewClient("http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Store(t.Context()); !errors.As(err, new(*Unreached)) || strings.Contains(err.Error(), "http://") {
		t.Errorf("got %v", err)
	}
}

func TestURLsOfSidecars(t *testing.T) {
	for _, bad := range []string{"", "127.0.0.1:1", "https://127.0.0.1", "http://", "http://u:p@127.0.0.1", "http://127.0.0.1/path", "http://127.0.0.1?q", "unix:///x"} {
		if _, err := NewClient(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// hanging is a way on which nothing comes until it is closed.
type hanging chan struct{}

// Dial implements httpstream.Dialer.
func (h hanging) Dial(...string) (httpstream.Connection, string, error) {
	<-h
	return nil, "", errors.New("at last")
}

func TestAConnectionThatIsNotMadeIsNotWaitedFor(t *testing.T) {
	h := make(hanging)
	defer close(h)
	tunnel := &tunnel{dialer: h, port: "1"}
	c := &Client{base: "http://127.0.0.1:1", http: &http.Client{Transport: &http.Transport{DialContext: tunnel.dialContext}}, tunnel: tunnel}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := c.Store(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	c.Close()
}
