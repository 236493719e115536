package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/tallyman-dev/tallyman/internal/testenv"
)

// startControlPlane starts etcd and kube-apiserver with the CRDs, and builds
// them first if this machine has not done so yet.
func (d *demo) startControlPlane(context.Context) error {
	controlPlane, err := testenv.New()
	if err != nil {
		return err
	}
	d.cleanup(controlPlane.Stop)
	d.kubectlPath = controlPlane.Kubectl
	d.kubeconfig = filepath.Join(d.dir, "kubeconfig")
	return controlPlane.WriteKubeconfig(d.kubeconfig)
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
	out, err := run(ctx, "", d.kubectlPath, append([]string{"--kubeconfig", d.kubeconfig}, args...)...)
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		fmt.Print("      ", line)
	}
	say("")
	return nil
}

// explainKept prints what to type while everything is left running.
func (d *demo) explainKept() {
	say(`
Everything is still running. In another terminal:

  export KUBECONFIG=%s
  alias kubectl=%s
  kubectl apply -f config/samples/orders.yaml
  kubectl get ratelimitpolicies -n shop --watch
  curl -i -X POST -H 'X-Api-Key: alice' %s/v1/orders
  curl %s/debug/policies
  redis-cli -u %s KEYS 'tallyman:*'

The logs are in %s. Ctrl-C ends the demo and removes them.`,
		d.kubeconfig, d.kubectlPath, d.doors[0].url, d.doors[0].admin, d.redis.url(), d.dir)
}
