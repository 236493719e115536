// Package testenv starts a real kube-apiserver with our CRDs for tests and the
// demo: no fake knows schema defaults, CEL rules or generations.
//
// There is no kubelet, no scheduler and no controller manager: pods never run
// and nothing is garbage collected. The programs are the ones that
// KUBEBUILDER_ASSETS points to, else those that hack/controlplane builds, which
// the first time takes minutes.
//
// Only tests and hack/ may import this package.
package testenv

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// ControlPlane is a running API server with its etcd.
type ControlPlane struct {
	// Config is a cluster administrator's.
	Config *rest.Config
	// Kubectl is the path of a kubectl of the API server's version.
	Kubectl string

	env *envtest.Environment
}

// New starts a control plane with the CRDs of config/crd/bases. Stop must be
// called also by tests that fail, or the processes stay.
func New() (*ControlPlane, error) {
	root, err := moduleRoot()
	if err != nil {
		return nil, err
	}
	assets, err := assets(root)
	if err != nil {
		return nil, err
	}
	env := &envtest.Environment{
		BinaryAssetsDirectory: assets,
		CRDDirectoryPaths:     []string{filepath.Join(root, "config", "crd", "bases")},
		ErrorIfCRDPathMissing: true,
		// A start takes some ten seconds, but tests run beside compilers.
		ControlPlaneStartTimeout: 2 * time.Minute,
		ControlPlaneStopTimeout:  time.Minute,
	}
	config, err := env.Start()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the control plane in %s: %w", assets, err), env.Stop())
	}
	return &ControlPlane{Config: config, Kubectl: filepath.Join(assets, "kubectl"), env: env}, nil
}

// Stop ends the API server and etcd. Their data is lost.
func (c *ControlPlane) Stop() error { return c.env.Stop() }

// WriteKubeconfig writes a kubeconfig for an administrator to a file that only
// its owner can read.
func (c *ControlPlane) WriteKubeconfig(path string) error {
	return os.WriteFile(path, c.env.KubeConfig, 0o600)
}

// assets returns the directory of the control plane's programs.
func assets(root string) (string, error) {
	build := exec.Command(filepath.Join(root, "hack", "controlplane", "build.sh"))
	build.Stderr = os.Stderr
	out, err := build.Output()
	if err != nil {
		return "", fmt.Errorf("build the control plane: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// moduleRoot looks for our go.mod from the working directory upwards: tests run
// in their package's directory, the demo wherever it was called.
func moduleRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if strings.HasPrefix(string(text), "module github.com/tallyman-dev/tallyman\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find the module's root: %s is outside of it", start)
		}
	}
}
