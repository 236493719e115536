package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/tallyman-dev/tallyman/internal/testenv"
)

// node is where the pods of shop.yaml are said to run.
const node = "demo"

// startControlPlane starts etcd and kube-apiserver with the CRDs, and builds
// them first if this machine has not done so yet. From then on kubectl is theirs.
func (d *demo) startControlPlane(ctx context.Context) error {
	controlPlane, err := testenv.New()
	if err != nil {
		return err
	}
	d.cleanup(controlPlane.Stop)
	d.kubelet, err = controlPlane.StartKubelet(ctx, node)
	if err != nil {
		return err
	}
	d.cleanup(func() error { d.kubelet.Stop(); return nil })
	d.kubeconfig = filepath.Join(d.dir, "kubeconfig")
	return errors.Join(
		controlPlane.WriteKubeconfig(d.kubeconfig),
		os.Symlink(controlPlane.Kubectl, filepath.Join(d.dir, "kubectl")),
		os.Setenv("KUBECONFIG", d.kubeconfig),
		os.Setenv("PATH", d.dir+string(filepath.ListSeparator)+os.Getenv("PATH")), // of the plugin, too
	)
}

// showKubectl runs kubectl against the demo's control plane, and shows the
// command and what it prints.
func (d *demo) showKubectl(ctx context.Context, args ...string) error {
	shown := make([]string, len(args))
	for i, arg := range args {
		shown[i] = strings.TrimPrefix(arg, d.root+string(filepath.Separator))
		if strings.ContainsAny(arg, " {[\"") {
			shown[i] = "'" + arg + "'"
		}
	}
	say("    $ kubectl %s", strings.Join(shown, " "))
	out, err := run(ctx, "", "kubectl", args...)
	for line := range strings.Lines(out) {
		fmt.Print("      ", line)
	}
	say("")
	return err
}

// explainKept prints what to type while everything is left running.
func (d *demo) explainKept() {
	say(`
Everything is still running. In another terminal, in this directory:

  export KUBECONFIG=%s PATH=%s:$PATH
  kubectl apply -f config/samples/orders.yaml
  while sleep 0.1; do curl -s -X POST -H 'X-Api-Key: alice' %s/v1/orders; done >/dev/null &

Why is a request refused, who is it that is, and does every pod enforce?

  kubectl tallyman explain -n shop deployment/orders --request 'POST /v1/orders' -H 'X-Api-Key: alice'
  kubectl tallyman top -n shop --reveal
  kubectl tallyman status -n shop

Give Alice her limit back, or nothing at all; what is that in the policy?

  kubectl tallyman reset -n shop orders per-client --key alice
  kubectl tallyman ban -n shop orders per-client --key alice
  kubectl get ratelimitpolicy -n shop orders -o yaml

Beneath it: a refusal, what a sidecar enforces, what is in Redis.

  curl -i -X POST -H 'X-Api-Key: alice' %s/v1/orders
  curl %s/debug/policies
  redis-cli -u %s KEYS 'tallyman:*'

More is in docs/plugin.md. The logs are in %s. Ctrl-C ends the demo and removes them.`,
		d.kubeconfig, d.dir, d.doors[0].url, d.doors[1].url, d.doors[0].admin, d.redis.url(), d.dir)
}
