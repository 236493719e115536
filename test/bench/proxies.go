package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/test/proc"
)

// The names of the contestants that are in front of an app. The first is none: its
// clients ask the app itself.
const (
	proxyDirect   = "proxy/none"
	proxyReverse  = "proxy/ReverseProxy"
	proxyTallyman = "proxy/tallyman"
	proxyLeased   = "proxy/tallyman/Leased"
	proxyExact    = "proxy/tallyman/Exact"
	proxyNginx    = "proxy/nginx"
)

// site is where a proxy is to work.
type site struct {
	dir   string // for its files
	app   string // address of the app
	redis string // address of Redis
	// sidecar is the path of the program.
	sidecar string
}

// proxyStarts are the processes. Each is one of its own, as it is in a pod.
var proxyStarts = map[string]func(ctx context.Context, s site) (*process, error){
	proxyReverse:  startReverseProxy,
	proxyTallyman: startSidecar(""),
	proxyLeased:   startSidecar(policy.Leased),
	proxyExact:    startSidecar(policy.Exact),
	proxyNginx:    startNginx,
}

var proxies = []contestant{
	{name: proxyDirect}, {name: proxyReverse}, {name: proxyTallyman}, {name: proxyLeased}, {name: proxyExact}, {name: proxyNginx},
}

// process is another process that serves at an address.
type process struct {
	addr string
	pid  int
	stop func()
}

// startProcess runs a command until stop is called, or this process ends, and waits
// until it serves.
func startProcess(ctx context.Context, addr string, cmd *exec.Cmd) (*process, error) {
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	exited, err := proc.Start(cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	p := &process{addr: addr, pid: cmd.Process.Pid, stop: func() {
		_ = cmd.Process.Kill()
		<-exited
	}}
	if err := awaitServing(ctx, addr, exited); err != nil {
		p.stop()
		return nil, fmt.Errorf("start %s: %w\n%s", cmd.Path, err, &complaints)
	}
	return p, nil
}

func awaitServing(ctx context.Context, addr string, exited <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		if conn, err := net.Dial("tcp", addr); err == nil {
			return conn.Close()
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-exited:
			return errors.New("it exited")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// startSelf runs this program with a command that takes addresses, of which the first
// is where it serves.
func startSelf(ctx context.Context, command string, others ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	addr, err := proc.FreeAddress()
	if err != nil {
		return nil, err
	}
	return startProcess(ctx, addr, exec.Command(self, append([]string{command, addr}, others...)...))
}

// reverseProxyCommand is the argument with which this program is an
// httputil.ReverseProxy that is tuned as its users do: all connections to the app are
// kept, buffers are used again, and the headers are those that the sidecar passes on.
const reverseProxyCommand = "reverseproxy"

func startReverseProxy(ctx context.Context, s site) (*process, error) {
	return startSelf(ctx, reverseProxyCommand, s.app)
}

func serveReverseProxy(addr, app string) error {
	target := &url.URL{Scheme: "http", Host: app}
	server := &http.Server{Addr: addr, ReadHeaderTimeout: 10 * time.Second, Handler: &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host
			r.SetXForwarded()
		},
		Transport:  &http.Transport{MaxIdleConns: 1024, MaxIdleConnsPerHost: 1024, DisableCompression: true},
		BufferPool: &bufferPool{},
	}}
	return server.ListenAndServe()
}

// bufferPool implements httputil.BufferPool.
type bufferPool struct{ pool sync.Pool }

func (p *bufferPool) Get() []byte {
	if buffer, ok := p.pool.Get().(*[32 << 10]byte); ok {
		return buffer[:]
	}
	return make([]byte, 32<<10)
}

func (p *bufferPool) Put(buffer []byte) { p.pool.Put((*[32 << 10]byte)(buffer)) }

// startSidecar runs the sidecar with one limit by client that admits all; without a
// mode, the limit is for requests that do not come.
func startSidecar(mode policy.DistributionMode) func(ctx context.Context, s site) (*process, error) {
	return func(ctx context.Context, s site) (*process, error) {
		path := "/"
		if mode == "" {
			path = "/elsewhere"
		}
		file := filepath.Join(s.dir, "policy.yaml")
		if err := os.WriteFile(file, fmt.Appendf(nil, proxyPolicy, plenty.Requests, plenty.Window, cmp.Or(mode, policy.Leased), path), 0o600); err != nil {
			return nil, err
		}
		addr, err := proc.FreeAddress()
		if err != nil {
			return nil, err
		}
		return startProcess(ctx, addr, exec.Command(s.sidecar, "--store", "redis://"+s.redis, "--policy-file", file,
			"--upstream", "http://"+s.app, "--listen", addr))
	}
}

const proxyPolicy = `
apiVersion: tallyman.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: bench}
spec:
  selector: {}
  limits:
  - name: per-client
    algorithm: TokenBucket
    requests: %d
    window: %v
    distribution: {mode: %s}
    key: [{clientIP: {}}]
    match: [{path: {type: Prefix, value: %s}}]
`

// buildSidecar builds the program as make build does, and returns its path.
func buildSidecar(ctx context.Context, dir string) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/tallyman-dev/tallyman").Output()
	if err != nil {
		return "", fmt.Errorf("find the sidecar's source (run this in its directory, test/bench): %w", err)
	}
	path := filepath.Join(dir, "sidecar")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags=grpcnotrace", "-ldflags=-s -w", "-o", path, "./cmd/sidecar")
	cmd.Dir = string(bytes.TrimSpace(root))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the sidecar: %w\n%s", err, out)
	}
	return path, nil
}

// findNginx returns the path of an nginx, or "": then it is not measured.
func findNginx() string {
	for _, name := range []string{cmp.Or(os.Getenv("NGINX_BINARY"), "nginx"), "/usr/sbin/nginx"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

const nginxConf = `
daemon off;
master_process off;
pid %[1]s/nginx.pid;
error_log stderr error;
events { worker_connections 1024; }
http {
  access_log off;
  client_body_temp_path %[1]s;
  proxy_temp_path %[1]s;
  fastcgi_temp_path %[1]s;
  uwsgi_temp_path %[1]s;
  scgi_temp_path %[1]s;
  keepalive_requests 1000000000;
  upstream app { server %[2]s; keepalive 1024; keepalive_requests 1000000000; }
  server {
    listen %[3]s;
    location / {
      proxy_pass http://app;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    }
  }
}
`

// startNginx runs one with one worker, which has a core as the others have all.
func startNginx(ctx context.Context, s site) (*process, error) {
	addr, err := proc.FreeAddress()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(s.dir, "nginx.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, nginxConf, s.dir, s.app, addr), 0o600); err != nil {
		return nil, err
	}
	return startProcess(ctx, addr, exec.Command(findNginx(), "-p", s.dir, "-c", file))
}
