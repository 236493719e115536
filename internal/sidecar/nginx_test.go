package sidecar

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/testredis"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// documented is the first block of code in a language in the documentation.
func documented(t *testing.T, language string) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/ways-in.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "```"+language+"\n")
	block, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatalf("the documentation has no block of %s", language)
	}
	return block
}

// nginxBinary also looks where Debian has it, and users often have not.
func nginxBinary(t *testing.T) string {
	t.Helper()
	names := []string{"nginx", "/usr/sbin/nginx"}
	if name := os.Getenv("NGINX_BINARY"); name != "" {
		names = []string{name}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatalf("this test needs an nginx, and there is none of %q: install it (Debian, Ubuntu: apt-get install nginx; "+
		"macOS: brew install nginx) or set NGINX_BINARY to its path", names)
	return ""
}

// runNginx runs a real nginx with the documented configuration and more changes of
// it, and returns its URL.
func runNginx(t *testing.T, sidecar, app string, changes ...[2]string) string {
	t.Helper()
	address := testredis.FreeAddr(t)
	servers := documented(t, "nginx")
	for _, change := range append(changes, [2]string{"listen 8081", "listen " + address},
		[2]string{"127.0.0.1:8082", sidecar}, [2]string{"http://127.0.0.1:8080", app}) {
		if !strings.Contains(servers, change[0]) {
			t.Fatalf("the documented configuration has no %q", change[0])
		}
		servers = strings.ReplaceAll(servers, change[0], change[1])
	}
	dir := t.TempDir()
	var temporary strings.Builder
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&temporary, "%s_temp_path %s;\n", kind, filepath.Join(dir, kind))
	}
	// One process, which a signal ends.
	config := fmt.Sprintf("daemon off; master_process off; pid nginx.pid; error_log stderr;\n"+
		"events { worker_connections 512; }\nhttp {\naccess_log off;\n%s%s}\n", &temporary, servers)
	path := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}

	var log lines
	cmd := exec.Command(nginxBinary(t), "-p", dir, "-c", path, "-e", "stderr")
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("nginx's log:\n%s", log.text.String())
		}
	})
	eventually(t, "nginx to listen", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return "http://" + address
}

// behindNginx is an app behind nginx, which asks a sidecar that counts in a real
// Redis.
func behindNginx(t *testing.T, spec string) (url string, redis *testredis.Server) {
	t.Helper()
	redis = testredis.Start(t)
	l, err := tallyman.New(t.Context(), tallyman.Options{Store: redis.URL(), PolicyFile: policyFile(t, spec)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(t.Context()) })
	sidecar := serveHTTP(t, newCheckAPI(doorsTo(l), 1, silent))
	app := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/forbidden" {
			w.WriteHeader(http.StatusForbidden)
		}
		fmt.Fprint(w, "app")
	}))
	return runNginx(t, sidecar.Listener.Addr().String(), app.URL), redis
}

func TestNginxRefusesWhatIsOverTheLimit(t *testing.T) {
	url, _ := behindNginx(t, `storeTimeout: 10s, limits: [{name: orders, requests: 2, window: 1h, algorithm: SlidingLog,
		match: [{methods: [POST], path: {value: /v1/orders}}], key: [{header: {name: X-Api-Key}}, {clientIP: {}}]}]`)
	order := func(set ...string) (*http.Response, string) {
		r := newRequest(t, "POST", url+"/v1/orders?a=1", strings.NewReader("an order"))
		r.Header.Set("X-Api-Key", "alice")
		for i := 0; i < len(set); i += 2 {
			r.Header.Set(set[i], set[i+1])
		}
		return do(t, client(t, false), r)
	}
	for i := range 2 {
		resp, body := order()
		want := fmt.Sprintf(`"orders";r=%d;t=3600`, 1-i)
		if resp.StatusCode != 200 || body != "app" || resp.Header.Get("RateLimit") != want || resp.Header.Get("RateLimit-Policy") != `"orders";q=2;w=3600` {
			t.Errorf("request %d got %d %q %v, want RateLimit %s", i, resp.StatusCode, body, resp.Header, want)
		}
	}
	resp, body := order()
	if resp.StatusCode != 429 || !strings.Contains(body, `"status":429`) || resp.Header.Get("Content-Type") != "application/problem+json" ||
		resp.Header.Get("Retry-After") != "3600" || resp.Header.Get("RateLimit") != `"orders";r=0;t=3600` || resp.Header.Get("RateLimit-Policy") == "" {
		t.Errorf("over the limit got %d %q %v", resp.StatusCode, body, resp.Header)
	}
	for name, set := range map[string][]string{
		"another path":         {"X-Forwarded-Uri", "/v1/free"},
		"another method":       {"X-Forwarded-Method", "GET"},
		"another address":      {"X-Forwarded-For", "192.0.2.1"},
		"other addresses":      {"X-Forwarded-For", "192.0.2.1, 192.0.2.2"},
		"gRPC":                 {"Content-Type", "application/grpc"},
		"a hop-by-hop key":     {"Connection", "X-Api-Key"},
		"the sidecar's answer": {"X-Tallyman-Status", "200"},
	} {
		if resp, _ := order(set...); resp.StatusCode != 429 {
			t.Errorf("a client that claims %s got %d", name, resp.StatusCode)
		}
	}
	for _, target := range []string{"/v1/orders#/v1/free", "/v1/./orders?b=2#?", "/v1/free/../orders#"} {
		r := newRequest(t, "POST", url, nil)
		r.URL.Opaque = target // as it is, which a client may send, and nginx takes for /v1/orders
		r.Header.Set("X-Api-Key", "alice")
		if resp, _ := do(t, client(t, false), r); resp.StatusCode != 429 {
			t.Errorf("%s got %d", target, resp.StatusCode)
		}
	}
	for name, want := range map[string]int{"/v1/free": 200, "/v1/forbidden": 403, "/v2/orders": 404, "/_tallyman": 404} {
		if resp, _ := do(t, client(t, false), newRequest(t, "POST", url+name, nil)); resp.StatusCode != want || resp.Header.Get("RateLimit") != "" {
			t.Errorf("%s got %d %v, want %d", name, resp.StatusCode, resp.Header, want)
		}
	}
}

func TestNginxAdmitsExactlyTheLimit(t *testing.T) {
	url, _ := behindNginx(t, `storeTimeout: 10s, limits: [{name: x, requests: 50, window: 1h, algorithm: SlidingLog, key: [{clientIP: {}}]}]`)
	c := client(t, false)
	var admitted, refused atomic.Int64
	var clients sync.WaitGroup
	for range 20 {
		clients.Go(func() {
			for range 10 {
				resp, err := c.Get(url + "/v1/orders")
				if err != nil {
					t.Errorf("request: %v", err)
					return
				}
				resp.Body.Close()
				switch resp.StatusCode {
				case http.StatusOK:
					admitted.Add(1)
				case http.StatusTooManyRequests:
					refused.Add(1)
				}
			}
		})
	}
	clients.Wait()
	if admitted.Load() != 50 || refused.Load() != 150 {
		t.Errorf("of 200 requests %d were admitted and %d refused under a limit of 50", admitted.Load(), refused.Load())
	}
}

func TestNginxTellsAnOutageFromARefusal(t *testing.T) {
	url, redis := behindNginx(t, `limits: [{name: x, requests: 50, window: 1h, failurePolicy: Deny}]`)
	redis.Kill()
	if resp, body := do(t, client(t, false), newRequest(t, "GET", url+"/v1/orders", nil)); resp.StatusCode != 503 || !strings.Contains(body, "503") {
		t.Errorf("without a store got %d %q %v", resp.StatusCode, body, resp.Header)
	}
}

func TestNginxWithoutASidecarRefusesOrLetsPassAsConfigured(t *testing.T) {
	app := serveHTTP(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	nobody := testredis.FreeAddr(t)
	open := [][2]string{
		{"internal;", "internal; proxy_connect_timeout 100ms; proxy_read_timeout 1s; error_page 502 504 = @unlimited;"},
		{"location @refused {", "location @unlimited { return 204; }\nlocation @refused {"},
	}
	for want, changes := range map[int][][2]string{500: nil, 200: open} {
		url := runNginx(t, nobody, app.URL, changes...)
		if resp, _ := do(t, client(t, false), newRequest(t, "GET", url+"/v1/orders", nil)); resp.StatusCode != want {
			t.Errorf("got %d, want %d", resp.StatusCode, want)
		}
	}
}
