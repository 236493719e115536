package testenv_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/testenv"
)

func TestKubectlSeesTheCRD(t *testing.T) {
	cluster, err := testenv.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})

	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := cluster.WriteKubeconfig(kubeconfig); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), cluster.Kubectl, "--kubeconfig", kubeconfig,
		"get", "crd", "--output", "name").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ratelimitpolicies.tallyman.dev") {
		t.Fatalf("kubectl get crd: %v\n%s", err, out)
	}
}
