//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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
		Eventually(func(ctx SpecContext) string {
			return kubectl(ctx, "get", "pods", "--namespace", namespace, "--selector", "app=orders", "--output",
				"jsonpath={.items[*].spec.initContainers[0].image}")
		}).WithContext(ctx).ShouldNot(ContainSubstring("previous"), "those that were there have ended")
		Expect(load(ctx, namespace, append(halfUsed, "-n", "30")...).Statuses).To(Equal(map[string]int{"200": 20, "429": 10}))
	})

	It("can be undone under pods, which go on", func(ctx SpecContext) {
		const namespace = "bereft"
		install(ctx, currentInstaller)
		deploy(ctx, namespace)
		DeferCleanup(func(ctx SpecContext) { undeploy(ctx, namespace) })
		// The Redis for trials goes too, in the same namespace.
		enforce(ctx, namespace, strings.Replace(policy(namespace, 50), "storeTimeout: 10s", "", 1))

		got := loadDuring(ctx, namespace, func() {
			kubectl(ctx, "delete", "--filename", currentInstaller, "--timeout", patience.String())
		})
		Expect(got.Errors).To(BeZero(), "%+v", got)
		for status := range got.Statuses {
			Expect(status).To(BeElementOf("200", "429"), "%+v", got)
		}
		Expect(leftovers(ctx)).To(BeEmpty())

		By("making the pods anew")
		restart(ctx, namespace)
		Eventually(func(ctx SpecContext) string {
			return kubectl(ctx, "get", "pods", "--namespace", namespace, "--selector", "tallyman.dev/sidecar", "--output", "name")
		}).WithContext(ctx).Should(BeEmpty(), "those that were there have ended")
		awaitService(ctx, namespace)
		Expect(load(ctx, namespace, "-n", "100").Statuses).To(Equal(map[string]int{"200": 100}))
	})

	It("by Helm limits requests, and leaves the policies when it is undone", func(ctx SpecContext) {
		const namespace = "charted"
		helm(ctx, "install", "tallyman", "charts/tallyman", "--create-namespace")
		DeferCleanup(func(ctx SpecContext) {
			kubectl(ctx, "delete", "--ignore-not-found", "--timeout", patience.String(), "customresourcedefinition/"+crd, "namespace/"+system)
		})
		DeferCleanup(func(ctx SpecContext) { helm(ctx, "uninstall", "tallyman", "--ignore-not-found") })
		applyRedis(ctx)
		deploy(ctx, namespace)
		DeferCleanup(func(ctx SpecContext) { undeploy(ctx, namespace) })
		enforce(ctx, namespace, policy(namespace, 50))
		Expect(load(ctx, namespace, "-n", "60").Statuses).To(Equal(map[string]int{"200": 50, "429": 10}))

		By("asking who may write policies")
		kubectl(ctx, "create", "rolebinding", "editor", "--namespace", namespace, "--clusterrole", "edit", "--user", "eve")
		Eventually(func(ctx SpecContext) (string, error) {
			return tryKubectl(ctx, "auth", "can-i", "create", "ratelimitpolicies", "--namespace", namespace, "--as", "eve")
		}).WithContext(ctx).Should(Equal("yes\n"))

		helm(ctx, "uninstall", "tallyman")
		Expect(leftovers(ctx)).To(ConsistOf("customresourcedefinition.apiextensions.k8s.io/" + crd))
		Expect(kubectl(ctx, "get", "ratelimitpolicies", "--namespace", namespace, "--output", "name")).To(ContainSubstring("/orders"))
	})
})

const crd = "ratelimitpolicies.tallyman.dev"

// leftovers are the names of the cluster's own objects that are of an installation.
func leftovers(ctx context.Context) []string {
	GinkgoHelper()
	out := kubectl(ctx, "get", "--output", "name",
		"clusterroles,clusterrolebindings,mutatingwebhookconfigurations,customresourcedefinitions")
	return slices.DeleteFunc(strings.Fields(out), func(name string) bool { return !strings.Contains(name, "tallyman") })
}

// helm runs Helm in the repository.
func helm(ctx context.Context, args ...string) string {
	GinkgoHelper()
	tool := []string{"-C", root, "tool", "-modfile=hack/tools/helm/go.mod", "helm", "--kubeconfig", kubeconfig, "--namespace", system}
	return mustRun(ctx, "", "go", append(tool, args...)...)
}

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
