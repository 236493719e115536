package arch

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// golang.org/x/net/trace runs templates, which call methods by their names, so that
// the linker has to keep all methods of everything: the sidecar would have 31 MB
// instead of 20. With the build tag, gRPC does without it.
func TestSidecarIsBuiltWithoutTraces(t *testing.T) {
	const tag, traces = "grpcnotrace", "golang.org/x/net/trace"
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags="+tag, module+"cmd/sidecar")
	list.Dir = "../.."
	out, err := list.Output()
	if err != nil {
		t.Fatalf("list what the sidecar links: %v", err)
	}
	if slices.Contains(strings.Fields(string(out)), traces) {
		t.Errorf("the sidecar links %s", traces)
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(makefile), "BUILD_TAGS := "+tag+"\n") {
		t.Errorf("make build does not set the tag %s", tag)
	}
}
