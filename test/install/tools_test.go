package install

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// root is the repository, seen from here.
const root = "../.."

const chart = root + "/charts/tallyman"

// The tools are those of the Makefile. The first time, Helm is built: minutes, which
// make test takes before.
var (
	helmPath      = tool("hack/tools/helm/go.mod", "helm")
	kustomizePath = tool("hack/tools/go.mod", "kustomize")
)

// tool builds a tool, and returns its path.
func tool(module, name string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		build := exec.Command("go", "tool", "-n", "-modfile="+module, name)
		build.Dir = root
		return output(build)
	})
}

// output is what a program prints, without the space around it. What it says of its
// errors is in the error.
func output(cmd *exec.Cmd) (string, error) {
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, out, errs.String())
	}
	return strings.TrimSpace(string(out)), err
}

func run(t *testing.T, tool func() (string, error), args ...string) (string, error) {
	t.Helper()
	path, err := tool()
	if err != nil {
		t.Fatal(err)
	}
	return output(exec.CommandContext(t.Context(), path, args...))
}

func mustRun(t *testing.T, tool func() (string, error), args ...string) string {
	t.Helper()
	out, err := run(t, tool, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
