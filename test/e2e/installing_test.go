//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// beforeTags is upgraded from as long as there are no tags.
const beforeTags = "9df79aadec3cbf53e959064f1ed2014e6a462346"

var _ = Describe("Installing", Ordered, Label("kind"), func() {
	BeforeAll(func(ctx SpecContext) {
		kubectl(ctx, "delete", "--filename", currentInstaller, "--timeout", patience.String())
		// Whatever fails, the other specs have what they need.
		DeferCleanup(func(ctx SpecContext) { install(ctx, currentInstaller) })
	})

	It("by the quickstart leads from nothing to a refused request", func(ctx SpecContext) {
		out := mustRun(ctx, quickstart(), "env", "--chdir", root, "KUBECONFIG="+kubeconfig, "KIND_CLUSTER_NAME="+clusterName,
			"bash", "-euo", "pipefail", "-s")
		AddReportEntry("docs/quickstart.md", ReportEntryVisibilityFailureOrVerbose, out)
		Expect(strings.Count(out, " 200\n")).To(Equal(10), out)
		Expect(strings.Count(out, "} 429\n")).To(Equal(2), out)
		Expect(out).To(ContainSubstring("HTTP/1.1 429 Too Many Requests"))
	})

	It("anew over a previous version goes on counting and enforcing", func(ctx SpecContext) {
		const namespace = "upgraded"
		install(ctx, buildPrevious(ctx))
		deploy(ctx, namespace)
		DeferCleanup(func(ctx SpecContext) { undeploy(ctx, namespace) })
		enforce(ctx, namespace, policy(namespace, 50))
		usedUp, halfUsed := []string{"-header", "X-Api-Key: a"}, []string{"-header", "X-Api-Key: b"}
		load(ctx, namespace, append(usedUp, "-n", "50")...)
		load(ctx, namespace, append(halfUsed, "-n", "20")...)

		By("applying the new installer")
		got := loadDuring(ctx, namespace, func() {
			applyInstaller(ctx, currentInstaller)
			awaitRollout(ctx, system, "tallyman-manager")
			awaitEnforced(ctx, namespace)
		}, usedUp...)
		Expect(got.Statuses).To(And(HaveLen(1), HaveKey("429")), "%+v", got)
		Expect(load(ctx, namespace, append(halfUsed, "-n", "10")...).Statuses).To(Equal(map[string]int{"200": 10}))

		By("giving the pods the new sidecar")
		got = loadDuring(ctx, namespace, func() {
			restart(ctx, namespace)
			awaitEnforced(ctx, namespace)
		}, usedUp...)
		Expect(got.Statuses).To(And(HaveLen(1), HaveKey("429")), "%+v", got)
		Expect(kubectl(ctx, "get", "pods", "--namespace", namespace, "--selector", "app=orders", "--output",
			"jsonpath={.items[*].spec.initContainers[0].image}")).NotTo(ContainSubstring("previous"))
		Expect(load(ctx, namespace, append(halfUsed, "-n", "30")...).Statuses).To(Equal(map[string]int{"200": 20, "429": 10}))
	})
})

var shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// quickstart is a script of the commands of docs/quickstart.md.
func quickstart() string {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(root, "docs/quickstart.md"))
	Expect(err).NotTo(HaveOccurred())
	// What goes on in the background would outlive a command that fails.
	script := "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
	for _, block := range shellBlock.FindAllStringSubmatch(string(text), -1) {
		script += block[1]
	}
	return strings.ReplaceAll(script, "kubectl apply --server-side -k config/redis",
		fmt.Sprintf("kubectl kustomize config/redis | sed 's|redis:7-bookworm|%s|' | kubectl apply --server-side -f -", redisImage))
}

// buildPrevious loads the images of a previous version into the cluster, and
// returns the path of its installer.
func buildPrevious(ctx context.Context) string {
	GinkgoHelper()
	commit := os.Getenv("E2E_PREVIOUS")
	if commit == "" {
		tag, _ := run(ctx, "", "git", "describe", "--tags", "--abbrev=0", "HEAD^")
		commit = cmp.Or(strings.TrimSpace(tag), beforeTags)
	}
	By("building " + commit)
	dir := GinkgoT().TempDir()
	archive := filepath.Join(dir, "source.tar")
	mustRun(ctx, "", "git", "-C", root, "archive", "--output", archive, commit)
	mustRun(ctx, "", "tar", "--extract", "--directory", dir, "--file", archive)
	mustRun(ctx, "", "make", "--directory", dir, "build-installer", "images", "IMAGE_PREFIX=tallyman", "IMAGE_TAG=previous")
	loadImages(ctx, "tallyman/manager:previous", "tallyman/sidecar:previous")
	return filepath.Join(dir, "dist/install.yaml")
}
