//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// root is the repository, seen from here.
const root = "../.."

var (
	clusterName = cmp.Or(os.Getenv("KIND_CLUSTER_NAME"), "tallyman-e2e")
	// redisImage is what the cluster has in the place of config/redis's.
	redisImage = cmp.Or(os.Getenv("E2E_REDIS_IMAGE"), "redis:7-bookworm")
)

// kubeconfig is of the cluster under test.
var kubeconfig string

// run runs a program with what it is to read, and returns what it prints.
func run(ctx context.Context, input, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(input)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, io.MultiWriter(&errs, GinkgoWriter)
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

func mustRun(ctx context.Context, input, program string, args ...string) string {
	GinkgoHelper()
	out, err := run(ctx, input, program, args...)
	Expect(err).NotTo(HaveOccurred())
	return out
}

func tryKubectl(ctx context.Context, args ...string) (string, error) {
	return run(ctx, "", "kubectl", append([]string{"--kubeconfig", kubeconfig}, args...)...)
}

func kubectl(ctx context.Context, args ...string) string {
	GinkgoHelper()
	out, err := tryKubectl(ctx, args...)
	Expect(err).NotTo(HaveOccurred())
	return out
}

// apply applies manifests as a user does.
func apply(ctx context.Context, manifests string) {
	GinkgoHelper()
	mustRun(ctx, manifests, "kubectl", "--kubeconfig", kubeconfig, "apply", "--server-side", "-f", "-")
}

// createCluster makes a kind cluster that has the images.
func createCluster(ctx context.Context) {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	kubeconfig = filepath.Join(dir, "kubeconfig")
	By("creating the kind cluster " + clusterName)
	args := []string{"create", "cluster", "--name", clusterName, "--kubeconfig", kubeconfig, "--wait", patience.String()}
	if image := os.Getenv("KIND_NODE_IMAGE"); image != "" {
		args = append(args, "--image", image)
	}
	mustRun(ctx, "", "kind", args...)
	loadImages(ctx, redisImage, "tallyman/manager:dev", "tallyman/sidecar:dev", "tallyman/app:dev")
}

func loadImages(ctx context.Context, images ...string) {
	GinkgoHelper()
	for _, image := range images {
		mustRun(ctx, "", "kind", "load", "docker-image", "--name", clusterName, image)
	}
}

func deleteCluster(ctx context.Context) {
	GinkgoHelper()
	mustRun(ctx, "", "kind", "delete", "cluster", "--name", clusterName)
}

// install applies an installer, and a Redis for trials.
func install(ctx context.Context, installer string) {
	GinkgoHelper()
	applyInstaller(ctx, installer)
	applyRedis(ctx)
}

// applyRedis applies a Redis for trials, and waits for the manager, which waits for it.
func applyRedis(ctx context.Context) {
	GinkgoHelper()
	redis := mustRun(ctx, "", "kubectl", "kustomize", filepath.Join(root, "config/redis"))
	apply(ctx, strings.ReplaceAll(redis, "redis:7-bookworm", redisImage))
	for _, name := range []string{"redis", "tallyman-manager"} {
		awaitRollout(ctx, system, name)
	}
}

func applyInstaller(ctx context.Context, installer string) {
	GinkgoHelper()
	manifests, err := os.ReadFile(installer)
	Expect(err).NotTo(HaveOccurred(), "make build-installer writes it")
	apply(ctx, string(manifests))
}

// currentInstaller is that of this tree.
var currentInstaller = filepath.Join(root, "dist/install.yaml")

// describe prints what helps to find out why a test failed.
func describe(ctx context.Context) {
	for _, args := range [][]string{
		{"get", "pods,events,ratelimitpolicies", "--all-namespaces", "--output", "wide"},
		{"describe", "ratelimitpolicies", "--all-namespaces"},
		{"logs", "--namespace", system, "--selector", "app.kubernetes.io/name=tallyman", "--tail", "200", "--prefix"},
		{"logs", "--namespace", system, "--selector", "app.kubernetes.io/name=redis", "--tail", "50", "--prefix"},
		{"logs", "--namespace", "shop", "--selector", "app=orders", "--all-containers", "--tail", "100", "--prefix"},
	} {
		out, err := tryKubectl(ctx, args...)
		AddReportEntry("kubectl "+strings.Join(args, " "), ReportEntryVisibilityFailureOrVerbose, out+fmt.Sprint(err))
	}
}
