//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// deploy makes a namespace with a workload, and waits until it runs.
func deploy(ctx context.Context, namespace string) {
	GinkgoHelper()
	applyFile(ctx, "testdata/shop.yaml", namespace)
	awaitRollout(ctx, namespace, "orders")
	kubectl(ctx, "wait", "--namespace", namespace, "--timeout", patience.String(), "--for", "condition=Ready", "pod/client")
	awaitService(ctx, namespace)
	Eventually(func(ctx SpecContext) map[string]int {
		return load(ctx, namespace, "-n", "64", "-c", "16", "-header", "X-Api-Key: probe").Pods
	}).WithContext(ctx).Should(HaveLen(3), "the Service leads to all pods")
}

// awaitService waits until the Service leads to the sidecars, which is some seconds
// after the pods are ready. Until then a connection is refused, or leads elsewhere.
func awaitService(ctx context.Context, namespace string) {
	GinkgoHelper()
	Eventually(func(ctx SpecContext) int {
		got := load(ctx, namespace, "-n", "8", "-header", "X-Api-Key: probe")
		return got.Statuses["200"] + got.Statuses["429"]
	}).WithContext(ctx).Should(Equal(8))
}

// applyFile applies a file's manifests in a namespace.
func applyFile(ctx context.Context, path, namespace string) {
	GinkgoHelper()
	manifests, err := os.ReadFile(path)
	Expect(err).NotTo(HaveOccurred())
	apply(ctx, strings.ReplaceAll(string(manifests), "the-namespace", namespace))
}

func undeploy(ctx context.Context, namespace string) {
	GinkgoHelper()
	kubectl(ctx, "delete", "namespace", namespace, "--timeout", patience.String())
}

// awaitRollout waits until all pods of a Deployment are new and ready.
func awaitRollout(ctx context.Context, namespace, deployment string) {
	GinkgoHelper()
	kubectl(ctx, "rollout", "status", "--namespace", namespace, "--timeout", patience.String(), "deployment/"+deployment)
}

// restart gives a namespace's workload new pods.
func restart(ctx context.Context, namespace string) {
	GinkgoHelper()
	kubectl(ctx, "rollout", "restart", "--namespace", namespace, "deployment/orders")
	awaitRollout(ctx, namespace, "orders")
}

// policy is a RateLimitPolicy with one limit for each API key, and for the requests
// without a key together. A window that begins with its first request does not end
// during a test, and a busy machine is no store that cannot answer.
func policy(namespace string, requests int, more ...string) string {
	return fmt.Sprintf(`
apiVersion: tallyman.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: orders, namespace: %s}
spec:
  targetRefs: [{kind: Deployment, name: orders}]
  storeTimeout: 10s
  %s
  limits:
  - {name: all, requests: %d, window: 1h, algorithm: FixedWindow, anchor: FirstRequest, key: [{header: {name: X-Api-Key}}]%s}
`, namespace, field(more, 0), requests, field(more, 1))
}

// field is a part of the manifest that is not always there.
func field(parts []string, i int) string {
	if i < len(parts) {
		return parts[i]
	}
	return ""
}

// enforce applies a policy, and waits until all pods say that they enforce it.
func enforce(ctx context.Context, namespace, manifest string) {
	GinkgoHelper()
	apply(ctx, manifest)
	awaitEnforced(ctx, namespace)
}

func awaitEnforced(ctx context.Context, namespace string) {
	GinkgoHelper()
	Eventually(func(ctx SpecContext) string {
		out, err := tryKubectl(ctx, "get", "ratelimitpolicy", "orders", "--namespace", namespace, "--output",
			`jsonpath={.metadata.generation} {.status.conditions[?(@.type=="Enforced")].observedGeneration} `+
				`{.status.conditions[?(@.type=="Enforced")].status} {.status.enforcers.current}/{.status.enforcers.total}`)
		if err != nil {
			return err.Error()
		}
		generation, rest, _ := strings.Cut(out, " ")
		return strings.TrimPrefix(rest, generation+" ")
	}).WithContext(ctx).Should(Equal("True 3/3"))
}

// scale sets a Deployment's replicas, and waits until that is so.
func scale(ctx context.Context, deployment string, replicas int) {
	GinkgoHelper()
	kubectl(ctx, "scale", "--namespace", system, "--replicas", fmt.Sprint(replicas), "deployment/"+deployment)
	awaitRollout(ctx, system, deployment)
	if replicas == 0 {
		kubectl(ctx, "wait", "--namespace", system, "--timeout", patience.String(), "--for", "delete", "pod",
			"--selector", "app.kubernetes.io/name="+strings.TrimPrefix(deployment, "tallyman-"))
	}
}
