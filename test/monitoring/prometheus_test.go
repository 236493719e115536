package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/internal/sidecar"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

const policies = `apiVersion: tallyman.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: orders, namespace: shop}
spec:
  selector: {}
  limits:
  - {name: x, requests: 5, window: 1h, match: [{path: {value: /x}}]}
  - {name: leased, requests: 100000, window: 1h, match: [{path: {value: /leased}}], distribution: {mode: Leased}}
`

// A real Prometheus scrapes a real sidecar, takes the alerts, and has answers to what
// the dashboards ask.
func TestPrometheusTakesItAll(t *testing.T) {
	admin, check := startSidecar(t)
	prometheus := startPrometheus(t, admin)
	for range 20 {
		ask(t, check, "/x")
	}
	eventually(t, "refusals in Prometheus", func() bool {
		return len(prometheus.query(t, `tallyman_decisions_total{namespace="shop",limit="x",outcome="refused",way="check"} == 15`)) == 1
	})

	var loaded struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	eventually(t, "all alerts to be worked out", func() bool {
		loaded.Groups = nil
		prometheus.get(t, "/api/v1/rules", nil, &loaded)
		n := 0
		for _, g := range loaded.Groups {
			for _, r := range g.Rules {
				if r.Health == "err" {
					t.Fatalf("%s: %s", r.Name, r.LastError)
				}
				if r.Health == "ok" {
					n++
				}
			}
		}
		return n == len(alerts(t))
	})

	values := strings.NewReplacer("$namespace", "shop", "$policy", "orders")
	for name, d := range dashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				prometheus.query(t, values.Replace(plain(target.Expr))) // fails if Prometheus does not take it
			}
		}
		t.Logf("%s: %d panels", name, len(d.Panels))
	}
	eventually(t, "units that lie idle while they are spent", func() bool {
		ask(t, check, "/leased")
		return len(prometheus.query(t, "tallyman_lease_idle_units > 0")) > 0
	})
	for _, expr := range []string{"tallyman_policies_in_force", "process_resident_memory_bytes and on (instance) tallyman_policies_in_force"} {
		if len(prometheus.query(t, expr)) == 0 {
			t.Errorf("nothing is %s", expr)
		}
	}
}

// ask has the sidecar decide a request.
func ask(t *testing.T, check, path string) {
	t.Helper()
	resp, err := http.Post("http://"+check+"/v1/check", "application/json", strings.NewReader(`{"path":"`+path+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

// startSidecar runs a sidecar, and says where its admin and check listeners are.
func startSidecar(t *testing.T) (admin, check string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(file, []byte(policies), 0o600); err != nil {
		t.Fatal(err)
	}
	lines, out := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- sidecar.Run(ctx, sidecar.Config{
			Limiter:     tallyman.Options{Store: tallyman.MemoryStore, PolicyFile: file, Namespace: "shop"},
			CheckListen: "127.0.0.1:0", AdminListen: "127.0.0.1:0", DrainTimeout: time.Second,
		}, slog.New(slog.NewJSONHandler(out, nil)))
		_ = out.Close()
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	for decoder := json.NewDecoder(lines); admin == "" || check == ""; {
		var line struct{ Service, Address string }
		if err := decoder.Decode(&line); err != nil {
			t.Fatalf("the sidecar ended: %v", err)
		}
		switch line.Service {
		case "admin":
			admin = line.Address
		case "check API":
			check = line.Address
		}
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	return admin, check
}

// prometheus is one that runs.
type prometheus struct{ url string }

const prometheusConfig = `
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [alerts.yaml]
scrape_configs:
- job_name: sidecars
  static_configs:
  - targets: [%q]
    labels: {namespace: shop, pod: orders-1}
`

func startPrometheus(t *testing.T, target string) prometheus {
	t.Helper()
	dir, address := t.TempDir(), freeAddress(t)
	writeRules(t, dir)
	config := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, prometheusConfig, target), 0o600); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	cmd := exec.Command(program("prometheus"), "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("Prometheus's log:\n%s", &log)
		}
	})
	p := prometheus{"http://" + address}
	eventually(t, "Prometheus", func() bool {
		resp, err := http.Get(p.url + "/-/ready")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return p
}

// freeAddress is one that nobody listens on just now: Prometheus does not say which
// port it got, if it may choose.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func (p prometheus) query(t *testing.T, expr string) (result []any) {
	t.Helper()
	var data struct{ Result []any }
	p.get(t, "/api/v1/query", url.Values{"query": {expr}}, &data)
	return data.Result
}

func (p prometheus) get(t *testing.T, path string, parameters url.Values, data any) {
	t.Helper()
	resp, err := http.Get(p.url + path + "?" + parameters.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s: %s, %s, %v", parameters, answer.Status, answer.Error, err)
	}
}

// eventually waits for a condition that another process brings about.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
