// Command demo shows Tallyman's whole way on one machine, with real parts: a
// kube-apiserver and etcd, a Redis, the manager, and three sidecars in front of
// a sample app. It applies a policy with kubectl, sends traffic through the
// three doors, and fails when a number is not what the policy says.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/tallyman-dev/tallyman/internal/testenv"
)

// demo is what the steps share.
type demo struct {
	root   string // of the repository
	dir    string // logs, binaries, kubeconfig
	client *http.Client
	undo   []func() error

	kubelet    *testenv.Kubelet
	kubeconfig string
	redis      redisServer
	doors      []door
	upstream   string
}

// door is one sidecar: a way in to the app.
type door struct {
	pod   string
	url   string // of its proxy
	admin string // URL of its admin listener
}

func main() {
	keep := flag.Bool("keep", false, "leave everything running at the end and print what to type next")
	flag.Parse()
	log.SetLogger(logr.Discard()) // of the libraries; what matters is said
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := show(ctx, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo failed:", err)
		os.Exit(1)
	}
}

// show runs the demo and cleans up behind it.
func show(ctx context.Context, keep bool) (err error) {
	began := time.Now()
	root, err := run(ctx, "", "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return fmt.Errorf("find the repository (run this inside of it): %w", err)
	}
	dir, err := os.MkdirTemp("", "tallyman-demo-")
	if err != nil {
		return err
	}
	d := &demo{root: root, dir: dir, client: &http.Client{Timeout: 10 * time.Second}}
	defer func() { err = errors.Join(err, d.cleanUp(err)) }()

	for _, step := range d.steps() {
		say("\n==> %s", step.title)
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.title, err)
		}
	}
	say("\nEvery number is what the policy says. That took %s.", time.Since(began).Round(time.Second))
	if keep {
		d.explainKept()
		<-ctx.Done()
	}
	return nil
}

// step is one part of the demo.
type step struct {
	title string
	run   func(context.Context) error
}

func (d *demo) steps() []step {
	return []step{
		{"Building the manager, the sidecar and the kubectl plugin", d.buildPrograms},
		{"Starting a control plane: etcd and kube-apiserver, with the RateLimitPolicy kind", d.startControlPlane},
		{"Starting Redis", d.startRedis},
		{"Creating a workload of three pods", d.install},
		{"Starting the manager", d.startManager},
		{"Starting the app and three sidecars in front of it", d.startDoors},
		{"kubectl apply: 100 requests a minute for each API key", d.applyPolicy},
		{"Alice sends 300 requests through three doors", d.sendAlice},
		{"Why was Alice refused? A sidecar is asked", d.explainRefusal},
		{"Bob has a count of his own", d.sendBob},
		{"Does every pod enforce? The manager and the sidecars are asked", d.showStatus},
		{"kubectl patch: 150 requests a minute; what is used stays used", d.raiseLimit},
		{"Redis is flushed: enforcement goes on, the manager restores the definitions", d.flushRedis},
		{"kubectl delete: enforcement stops", d.deletePolicy},
	}
}

// cleanup registers something to undo; the last registered is undone first.
func (d *demo) cleanup(f func() error) { d.undo = append(d.undo, f) }

// cleanUp ends everything. After a failure it keeps the logs and says where.
func (d *demo) cleanUp(failure error) error {
	say("\n==> Cleaning up")
	var errs []error
	for _, undo := range slices.Backward(d.undo) {
		errs = append(errs, undo())
	}
	if failure != nil && !errors.Is(failure, context.Canceled) {
		say("    The logs are in %s", d.dir)
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, os.RemoveAll(d.dir))...)
}

// path is a file of the repository.
func (d *demo) path(elements ...string) string {
	return filepath.Join(append([]string{d.root}, elements...)...)
}

// say prints a line of the demo.
func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }
