package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tallyman-dev/tallyman/internal/testenv"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// realWorld is a namespace with the programs as they are: a manager, a Redis, and
// three sidecars in front of an app. The kubelet alone is none.
type realWorld struct {
	*world
	redis *testredis.Server
	doors []string // URLs of the sidecars
}

func startRealWorld(t *testing.T) *realWorld {
	t.Helper()
	w := &realWorld{world: newWorld(t), redis: testredis.Start(t)}
	w.ns = "shop" // as in the sample
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}})
	programs := t.TempDir() + string(filepath.Separator)
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", programs, "../manager", "../sidecar").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.deployment("orders")
	w.start(programs+"manager", "--kubeconfig", w.kubeconfig, "--store", w.redis.URL(),
		"--health-probe-bind-address", "0", "--metrics-bind-address", "0", "--operator-bind-address", w.managerPod())
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }))
	t.Cleanup(app.Close)
	for _, pod := range []string{"orders-a", "orders-b", "orders-c"} {
		listen, operate := testredis.FreeAddr(t), testredis.FreeAddr(t)
		w.pod(pod, answering(nil))
		w.kubelet.Forward(w.ns, pod, operatorPortOfTests, operate)
		w.start(programs+"sidecar", "--store", w.redis.URL(), "--namespace", w.ns, "--pod", pod, "--pod-labels", "app=orders",
			"--upstream", app.URL, "--listen", listen, "--operator-listen", operate, "--admin-listen", "127.0.0.1:0", "--check-listen", "")
		w.doors = append(w.doors, "http://"+listen)
	}
	return w
}

// managerPod makes a pod for the manager, and returns where it is to serve.
func (w *realWorld) managerPod() string {
	w.t.Helper()
	at := testredis.FreeAddr(w.t)
	w.managerAt(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tallyman-system"}}, at)
	return at
}

func (w *realWorld) start(program string, args ...string) {
	w.t.Helper()
	c := exec.CommandContext(context.Background(), program, args...)
	var log strings.Builder
	c.Stderr = &log
	if err := c.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = c.Process.Signal(os.Interrupt)
		_ = c.Wait()
		if w.t.Failed() {
			w.t.Logf("%s:\n%s", filepath.Base(program), log.String())
		}
	})
}

// traffic sends requests of a client to all doors in turn, until the context ends.
func (w *realWorld) traffic(ctx context.Context, client string, pause time.Duration) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for i := 0; ; i++ {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.doors[i%len(w.doors)]+"/v1/orders", nil)
		if err == nil {
			r.Header.Set("X-Api-Key", client)
			var resp *http.Response
			if resp, err = http.DefaultClient.Do(r); err == nil {
				resp.Body.Close()
			}
		}
		if err != nil && ctx.Err() == nil {
			w.t.Error(err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// example is a command of the guide, and what it prints.
type example struct {
	args   []string
	output string
}

// examples are those of docs/plugin.md, in their order.
func examples(t *testing.T) (all []example) {
	t.Helper()
	guide, err := os.ReadFile("../../docs/plugin.md")
	if err != nil {
		t.Fatal(err)
	}
	quoted := regexp.MustCompile(`'[^']*'|[^ ']+`)
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(string(guide), -1) {
		for _, one := range strings.Split(block[1], "$ kubectl tallyman ")[1:] {
			command, output, _ := strings.Cut(one, "\n")
			e := example{output: output}
			for _, arg := range quoted.FindAllString(command, -1) {
				e.args = append(e.args, strings.Trim(arg, "'"))
			}
			all = append(all, e)
		}
	}
	return all
}

// figure is a number, a time or an address, which are others each time.
var figure = regexp.MustCompile(`^[0-9][0-9.:]*([hmsµn]+[0-9]*)*[.,]?$`)

// shape is a text without figures, and with one space between columns.
func shape(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		for word := range strings.FieldsSeq(line) {
			switch {
			case figure.MatchString(word):
				word = "N"
			case word == "unit": // there is but one to give back when a minute has just begun
				word = "units"
			}
			b.WriteString(word + " ")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestThePluginsGuideShowsWhatHappens(t *testing.T) {
	w := startRealWorld(t)
	apply := exec.CommandContext(t.Context(), w.Kubectl, "--kubeconfig", w.kubeconfig, "apply", "-f", "../../config/samples/orders.yaml")
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	clients.Go(func() { w.traffic(ctx, "alice", 10*time.Millisecond) })
	clients.Go(func() { w.traffic(ctx, "bob", time.Second) })
	defer clients.Wait()
	defer stop()

	for _, e := range examples(t) {
		name := strings.Join(e.args, " ")
		check := func() error {
			stdout, stderr, code := w.run(e.args...)
			if diff := cmp.Diff(shape(e.output), shape(stdout)); diff != "" || stderr != "" {
				return fmt.Errorf("%s: exit code %d, %s, (-want +got):\n%s", name, code, stderr, diff)
			}
			return nil
		}
		// What looks comes to see it, what changes does it once.
		if slices.Contains([]string{"explain", "top", "status"}, e.args[0]) {
			testenv.Eventually(t, check)
		} else if err := check(); err != nil {
			t.Fatal(err)
		}
	}
}
