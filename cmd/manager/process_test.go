package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/internal/testenv"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// binary is the manager's path.
var binary string

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "manager-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "manager")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the manager: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// process is a manager that runs.
type process struct {
	cmd                       *exec.Cmd
	exited                    chan struct{}
	log                       string // path of a file
	health, metrics, operator string // URLs
	webhook                   string // address
}

// start runs a manager with the flags that are given and some addresses.
func start(t *testing.T, kubeconfig string, args ...string) *process {
	t.Helper()
	health, metrics, webhook, operator := testredis.FreeAddr(t), testredis.FreeAddr(t), testredis.FreeAddr(t), testredis.FreeAddr(t)
	p := &process{
		exited: make(chan struct{}),
		log:    filepath.Join(t.TempDir(), "log"),
		health: "http://" + health, metrics: "http://" + metrics + "/metrics", operator: "http://" + operator,
		webhook: webhook,
	}
	log, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p.cmd = exec.Command(binary, append(args, "--health-probe-bind-address="+health, "--metrics-bind-address="+metrics,
		"--webhook-bind-address="+webhook, "--operator-bind-address="+operator)...)
	p.cmd.Env = []string{"KUBECONFIG=" + kubeconfig}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.exited
		if t.Failed() {
			t.Logf("the log of the manager of %s:\n%s", p.health, p.logged(t))
		}
	})
	return p
}

// stop asks the manager to end, and returns its exit code.
func (p *process) stop(t *testing.T) int {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.exited:
	case <-time.After(testenv.Patience):
		t.Fatal("the manager does not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) logged(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(p.log)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// anyCertificate is for what a manager serves with a certificate of its own.
var anyCertificate = &http.Client{
	Timeout:   10 * time.Second,
	Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true},
}

// get returns the body of an answer whose status is the wanted one.
func get(t *testing.T, url, token string, status int) (string, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := anyCertificate.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != status {
		err = fmt.Errorf("GET %s: status %d, not %d", url, response.StatusCode, status)
	}
	return string(body), err
}
