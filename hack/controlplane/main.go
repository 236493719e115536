// Command controlplane is etcd, kube-apiserver and kubectl in one binary. It
// acts as the one whose name it is called by, so that the code they share is
// compiled, linked and stored once.
//
// It exists for tests and the demo, which need a real API server on machines
// that can fetch Go modules but no release binaries. It has a module of its
// own: nothing of Kubernetes' own dependencies may reach the product's.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/version"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver()))
	case "kubectl":
		// CheckErr, rather than an exit of our own, prints kubectl's hints and
		// keeps its exit codes (diff's 1 and 2 differ in meaning).
		util.CheckErr(cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()))
	default:
		fmt.Fprintf(os.Stderr, "%s: call me etcd, kube-apiserver or kubectl (Kubernetes %s)\n",
			name, version.Get().GitVersion)
		os.Exit(2)
	}
}

func apiserver() *cobra.Command { return app.NewAPIServerCommand() }
