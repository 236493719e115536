package sidecar

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/store"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// binary builds the sidecar, once for all tests of the process.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sidecar-test-")
	if err != nil {
		return "", err
	}
	builtIn.Store(&dir)
	path := filepath.Join(dir, "sidecar")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-tags=grpcnotrace", "-o", path, "../../cmd/sidecar").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the sidecar: %w\n%s", err, out)
	}
	return path, nil
})

// removeBinary removes what binary has built, if it has.
func removeBinary() {
	if dir := builtIn.Load(); dir != nil {
		_ = os.RemoveAll(*dir)
	}
}

// builtIn is binary's directory.
var builtIn atomic.Pointer[string]

// process is a sidecar that runs.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed at the end; then log is complete
	log    strings.Builder
	// urls are where the services listen, by their names in the log.
	urls map[string]string
}

// run starts a sidecar, and waits until the services that are named listen.
// Addresses may have port 0.
func run(t *testing.T, services []string, args ...string) *process {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(path, args...), exited: make(chan struct{}), urls: map[string]string{}}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.exited
		if t.Failed() {
			t.Logf("the sidecar's log:\n%s", &p.log)
		}
	})
	lines := make(chan string, 1000)
	go p.read(stderr, lines)
	for line := range lines {
		var entry struct{ Msg, Service, Address string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "Listening" {
			p.urls[entry.Service] = "http://" + entry.Address
		}
		if len(p.urls) == len(services) {
			return p
		}
	}
	<-p.exited
	t.Fatalf("the sidecar ended: %s", &p.log)
	return nil
}

// read keeps the log, and passes on the first lines.
func (p *process) read(stderr io.Reader, lines chan<- string) {
	defer close(p.exited)
	defer close(lines)
	scanner := bufio.NewScanner(stderr)
	for scanner.Scan() {
		p.log.WriteString(scanner.Text() + "\n")
		select {
		case lines <- scanner.Text():
		default:
		}
	}
	_ = p.cmd.Wait()
}

// stop asks the sidecar to end, and returns its exit code.
func (p *process) stop(t *testing.T) int {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.exited:
	case <-time.After(20 * time.Second):
		t.Fatal("the sidecar does not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

// longWindow is a window that began a while ago and ends in a while, so that
// limits that reset at the end of windows do not during a test. Windows are
// aligned to the start of 1970, by Redis's clock, which here is ours.
func longWindow() string {
	for hours := time.Duration(1); ; hours++ {
		window := hours * time.Hour
		if into := time.Duration(time.Now().UnixNano()) % window; into < window-10*time.Minute {
			return fmt.Sprintf("%dh", hours)
		}
	}
}

// three doors, one list: whichever way the requests come in, the limit is that
// of all doors together.
func TestThreeSidecarsShareOneCount(t *testing.T) {
	app := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "app") }))
	redis := testredis.Start(t)
	spec := `{"selector":{},"storeTimeout":"10s","limits":[`
	algorithms := []string{"FixedWindow", "SlidingWindow", "SlidingLog", "TokenBucket"}
	for i, algorithm := range algorithms {
		if i > 0 {
			spec += ","
		}
		spec += fmt.Sprintf(`{"name":"limit-%d","requests":100,"window":%q,"algorithm":%q,"match":[{"path":{"value":"/%s"}}],"key":[{"header":{"name":"X-Api-Key"}}]}`,
			i, longWindow(), algorithm, algorithm)
	}
	publish(t, redis, 1, spec+"]}")

	var doors []*process
	for i := range 3 {
		door := run(t, []string{"proxy", "admin"}, "--store", redis.URL(), "--namespace", "shop", "--pod", fmt.Sprintf("orders-%d", i),
			"--pod-labels", "app=orders", "--upstream", app.URL, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
		doors = append(doors, door)
		awaitReady(t, door)
	}
	for _, algorithm := range algorithms {
		t.Run(algorithm, func(t *testing.T) {
			// A bucket refills while the requests are made, but no faster than one
			// unit in 36 s, and they take less than a second.
			if got := sendThrough(t, doors, "/"+algorithm, 300); got != 100 {
				t.Errorf("admitted %d of 300 under a limit of 100", got)
			}
		})
	}
	for _, door := range doors {
		if code := door.stop(t); code != 0 {
			t.Errorf("a sidecar ended with code %d", code)
		}
	}
	if left, err := definitions(t, redis).Enforcers(t.Context(), "shop"); err != nil || len(left) != 0 {
		t.Errorf("after all have ended the enforcers are %v, %v", left, err)
	}
}

// sendThrough makes requests through random doors, a few at a time, and counts
// those that are admitted.
func sendThrough(t *testing.T, doors []*process, path string, n int) (admitted int) {
	t.Helper()
	c := client(t, false)
	var mu sync.Mutex
	var clients sync.WaitGroup
	for range 10 {
		clients.Go(func() {
			for range n / 10 {
				r, _ := http.NewRequestWithContext(t.Context(), "GET", doors[rand.IntN(len(doors))].urls["proxy"]+path, nil)
				r.Header.Set("X-Api-Key", "alice")
				resp, err := c.Do(r)
				if err != nil {
					t.Errorf("request: %v", err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				mu.Lock()
				switch resp.StatusCode {
				case http.StatusOK:
					admitted++
				case http.StatusTooManyRequests:
				default:
					t.Errorf("a request got %d", resp.StatusCode)
				}
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	return admitted
}

func definitions(t *testing.T, redis *testredis.Server) *store.Store {
	return store.New(redis.Client(t), store.DefaultPrefix)
}

// publish makes this spec the only policy of namespace shop.
func publish(t *testing.T, redis *testredis.Server, generation int64, spec string) {
	t.Helper()
	s, err := policy.DecodeSpec([]byte(spec))
	if err != nil {
		t.Fatal(err)
	}
	d := policy.Definition{Namespace: "shop", Name: "orders", Generation: generation,
		Selectors: []policy.Selector{{MatchLabels: map[string]string{"app": "orders"}}}, Spec: s}
	if _, err := definitions(t, redis).Publish(t.Context(), "shop", []policy.Definition{d}); err != nil {
		t.Fatal(err)
	}
}

func awaitReady(t *testing.T, p *process) {
	t.Helper()
	c := client(t, false)
	eventually(t, "readiness", func() bool {
		resp, err := c.Get(p.urls["admin"] + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

func TestPolicyFileIsEnforcedWithoutClusterAndRedis(t *testing.T) {
	app := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "app") }))
	p := run(t, []string{"proxy"}, "--policy-file", policyFile(t, `limits: [{name: x, requests: 3, window: 1h, algorithm: SlidingLog}]`),
		"--store", "memory:", "--upstream", app.URL, "--listen", "127.0.0.1:0")
	for i := range 5 {
		resp, body := do(t, client(t, false), newRequest(t, "GET", p.urls["proxy"]+"/v1/orders", nil))
		switch {
		case i < 3 && (resp.StatusCode != 200 || body != "app"):
			t.Errorf("request %d got %d %q", i, resp.StatusCode, body)
		case i >= 3 && (resp.StatusCode != 429 || resp.Header.Get("Retry-After") == ""):
			t.Errorf("request %d got %d %v", i, resp.StatusCode, resp.Header)
		}
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("the sidecar ended with code %d", code)
	}
}

func TestRequestsUnderWayEndBeforeTheSidecarDoes(t *testing.T) {
	arrived, finish := make(chan struct{}), make(chan struct{})
	app := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-finish
		fmt.Fprint(w, "app")
	}))
	p := run(t, []string{"proxy", "admin"}, "--policy-file", policyFile(t, roomy), "--store", "memory:",
		"--upstream", app.URL, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
	c := client(t, false)
	answered := make(chan string)
	go func() {
		resp, err := c.Get(p.urls["proxy"])
		if err != nil {
			answered <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		answered <- string(body)
	}()
	<-arrived
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the proxy to accept no more, and the admin to say so", func() bool {
		if resp, err := client(t, false).Get(p.urls["proxy"]); err == nil {
			resp.Body.Close()
			return false
		}
		resp, err := c.Get(p.urls["admin"] + "/readyz")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusServiceUnavailable
	})
	close(finish)
	if got := <-answered; got != "app" {
		t.Errorf("the request under way got %q", got)
	}
	<-p.exited
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the sidecar ended with code %d", code)
	}
}

func TestRequestsThatDoNotEndAreCutOff(t *testing.T) {
	arrived, finish := make(chan struct{}), make(chan struct{})
	app := serveHTTP(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(arrived); <-finish }))
	defer close(finish)
	p := run(t, []string{"proxy"}, "--policy-file", policyFile(t, roomy), "--store", "memory:",
		"--upstream", app.URL, "--listen", "127.0.0.1:0", "--drain-timeout", "50ms")
	var requests sync.WaitGroup
	c := client(t, false)
	requests.Go(func() {
		if resp, err := c.Get(p.urls["proxy"]); err == nil {
			resp.Body.Close()
		}
	})
	<-arrived
	if code := p.stop(t); code != 0 || !strings.Contains(p.log.String(), "Cut off") {
		t.Errorf("the sidecar ended with code %d", code)
	}
	requests.Wait()
}

func TestCredentialsAreNotLogged(t *testing.T) {
	p := run(t, []string{"check API"}, "--store", "redis://sidecar:sesame@127.0.0.1:1", "--namespace", "shop", "--pod-labels", "app=orders",
		"--check-listen", "127.0.0.1:0", "--log-level", "debug")
	resp, _ := do(t, client(t, false), newRequest(t, "POST", p.urls["check API"]+"/v1/check", strings.NewReader(`{}`)))
	if resp.StatusCode != 200 || p.stop(t) != 0 {
		t.Errorf("got %d", resp.StatusCode)
	}
	if strings.Contains(p.log.String(), "sesame") || !strings.Contains(p.log.String(), "connection refused") {
		t.Errorf("the log is\n%s", &p.log)
	}
}

func TestFaultsEndTheSidecarWithAMessage(t *testing.T) {
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"misuse":        {[]string{"--store", "memory:"}, "--policy-file"},
		"policy":        {[]string{"--store", "memory:", "--check-listen", ":0", "--policy-file", policyFile(t, `limits: [{name: x, requests: 1, window: 0s}]`)}, "spec.limits[0].window"},
		"secret in URL": {[]string{"--store", "sesame@127.0.0.1", "--namespace", "a", "--pod-labels", "a=b", "--check-listen", ":0"}, "redis://"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			out, err := exec.CommandContext(ctx, path, tc.args...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), tc.want) || strings.Contains(string(out), "sesame") {
				t.Errorf("got %v with %q, want a failure with %q", err, out, tc.want)
			}
		})
	}
}
