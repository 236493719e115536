//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// deploy makes a namespace with a workload, and waits until it runs.
func deploy(ctx context.Context, namespace string) {
	GinkgoHelper()
	applyFile(ctx, "testdata/shop.yaml", namespace)
	kubectl(ctx, "rollout", "status", "--namespace", namespace, "--timeout", "120s", "deployment/orders")
	kubectl(ctx, "wait", "--namespace", namespace, "--timeout", "60s", "--for", "condition=Ready", "pod/client")
	Eventually(func(ctx SpecContext) int { return load(ctx, namespace).Errors }).WithContext(ctx).Should(BeZero(), "the Service answers")
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
	kubectl(ctx, "delete", "namespace", namespace, "--timeout", "120s")
}

// policy is a RateLimitPolicy with one limit for all requests to orders. A window
// that begins with its first request does not end during a test.
func policy(namespace string, requests int, more ...string) string {
	return fmt.Sprintf(`
apiVersion: tallyman.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: orders, namespace: %s}
spec:
  targetRefs: [{kind: Deployment, name: orders}]
  %s
  limits:
  - {name: all, requests: %d, window: 1h, algorithm: FixedWindow, anchor: FirstRequest%s}
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
	kubectl(ctx, "rollout", "status", "--namespace", system, "--timeout", "120s", "deployment/"+deployment)
	if replicas == 0 {
		kubectl(ctx, "wait", "--namespace", system, "--timeout", "60s", "--for", "delete", "pod",
			"--selector", "app.kubernetes.io/name="+strings.TrimPrefix(deployment, "tallyman-"))
	}
}

var _ = Describe("A policy", Ordered, func() {
	const namespace = "shop"
	BeforeAll(func(ctx SpecContext) {
		deploy(ctx, namespace)
		DeferCleanup(func(ctx SpecContext) { undeploy(ctx, namespace) })
	})

	It("is one limit for all replicas together", func(ctx SpecContext) {
		enforce(ctx, namespace, policy(namespace, 50))
		got := load(ctx, namespace, "-n", "200", "-c", "16")
		Expect(got.Statuses).To(Equal(map[string]int{"200": 50, "429": 150}), "%+v", got)
		Expect(len(got.Pods)).To(BeNumerically(">", 1), "the Service dealt them out: %v", got.Pods)
		Expect(got.RetryAfter).NotTo(BeEmpty())
	})

	It("is enforced before the app has its first request", func(ctx SpecContext) {
		pods := kubectl(ctx, "get", "pods", "--namespace", namespace, "--selector", "app=orders", "--output",
			`jsonpath={range .items[*]}{.spec.initContainers[0].name}/{.status.initContainerStatuses[0].started} {end}`)
		Expect(strings.Fields(pods)).To(Equal([]string{"tallyman/true", "tallyman/true", "tallyman/true"}))
	})

	It("keeps what is used when it is edited", func(ctx SpecContext) {
		enforce(ctx, namespace, policy(namespace, 80))
		Expect(load(ctx, namespace, "-n", "100").Statuses).To(Equal(map[string]int{"200": 30, "429": 70}))
	})

	It("goes on while no manager runs", func(ctx SpecContext) {
		scale(ctx, "tallyman-manager", 0)
		DeferCleanup(func(ctx SpecContext) { scale(ctx, "tallyman-manager", 2) })
		Expect(load(ctx, namespace, "-n", "20").Statuses).To(Equal(map[string]int{"429": 20}))
	})

	It("never touches the counts of another namespace's policy of the same name", func(ctx SpecContext) {
		const other = "other"
		deploy(ctx, other)
		DeferCleanup(func(ctx SpecContext) { undeploy(ctx, other) })
		enforce(ctx, other, policy(other, 10))
		Expect(load(ctx, other, "-n", "30").Statuses).To(Equal(map[string]int{"200": 10, "429": 20}))
		Expect(load(ctx, namespace, "-n", "10").Statuses).To(Equal(map[string]int{"429": 10}))
	})

	It("has new pods wait for a sidecar while no manager runs", func(ctx SpecContext) {
		scale(ctx, "tallyman-manager", 0)
		DeferCleanup(func(ctx SpecContext) { scale(ctx, "tallyman-manager", 2) })
		kubectl(ctx, "delete", "pod", "--namespace", namespace, "--selector", "app=orders", "--wait=false")
		Eventually(func(ctx SpecContext) string {
			return kubectl(ctx, "get", "events", "--namespace", namespace, "--field-selector", "reason=FailedCreate",
				"--output", "jsonpath={.items[*].message}")
		}).WithContext(ctx).Should(ContainSubstring("webhook"))
	})

	It("has them as soon as there is one", func(ctx SpecContext) { awaitEnforced(ctx, namespace) })

	It("lets a Job end that has a sidecar", func(ctx SpecContext) {
		applyFile(ctx, "testdata/job.yaml", namespace)
		kubectl(ctx, "wait", "--namespace", namespace, "--timeout", "90s", "--for", "condition=Complete", "job/report")
		Expect(kubectl(ctx, "get", "pods", "--namespace", namespace, "--selector", "app=report", "--output",
			"jsonpath={.items[*].spec.initContainers[*].name}")).To(Equal("tallyman"))
	})

	It("loses no request in a rolling update", func(ctx SpecContext) {
		done := make(chan answers)
		go func() {
			defer GinkgoRecover()
			defer close(done)
			done <- load(ctx, namespace, "-n", "0", "-c", "4", "-for", "25s")
		}()
		kubectl(ctx, "rollout", "restart", "--namespace", namespace, "deployment/orders")
		kubectl(ctx, "rollout", "status", "--namespace", namespace, "--timeout", "120s", "deployment/orders")
		got := <-done
		Expect(got.Errors).To(BeZero(), "%+v", got)
		Expect(got.Statuses).To(HaveLen(1), "%+v", got)
		Expect(got.Statuses).To(HaveKey("429"))
		awaitEnforced(ctx, namespace)
	})

	It("is in force again after Redis has lost everything", func(ctx SpecContext) {
		scale(ctx, "redis", 0)
		scale(ctx, "redis", 1)
		Eventually(func(ctx SpecContext) map[string]int {
			return load(ctx, namespace, "-n", "100").Statuses
		}).WithContext(ctx).Should(Equal(map[string]int{"429": 100}), "counted anew, and used up anew")
		awaitEnforced(ctx, namespace)
	})

	It("refuses nothing in Shadow", func(ctx SpecContext) {
		enforce(ctx, namespace, policy(namespace, 80, "enforcement: Shadow"))
		Expect(load(ctx, namespace, "-n", "100").Statuses).To(Equal(map[string]int{"200": 100}))
	})

	It("ends when it is deleted", func(ctx SpecContext) {
		enforce(ctx, namespace, policy(namespace, 0))
		Expect(load(ctx, namespace, "-n", "10").Statuses).To(Equal(map[string]int{"429": 10}))
		kubectl(ctx, "delete", "ratelimitpolicy", "orders", "--namespace", namespace)
		Eventually(func(ctx SpecContext) map[string]int {
			return load(ctx, namespace, "-n", "10").Statuses
		}).WithContext(ctx).Should(Equal(map[string]int{"200": 10}))
	})

	DescribeTable("without Redis", func(ctx SpecContext, name, failure string, expected OmegaMatcher) {
		// Under a new name, since a backstop knows what was used of the old one.
		manifest := policy(namespace, 1000, "", ", "+failure)
		enforce(ctx, namespace, strings.Replace(manifest, "name: all", "name: "+name, 1))
		scale(ctx, "redis", 0)
		DeferCleanup(func(ctx SpecContext) { scale(ctx, "redis", 1) })
		Expect(load(ctx, namespace, "-n", "300", "-c", "16").Statuses).To(expected)
	},
		Entry("Allow admits", "allow", "failurePolicy: Allow", Equal(map[string]int{"200": 300})),
		Entry("Deny answers that it cannot tell", "deny", "failurePolicy: Deny", Equal(map[string]int{"503": 300})),
		// Each of three pods admits ten: of 300 requests, all get more than that.
		Entry("Backstop holds each pod by itself", "backstop", "backstop: {requests: 10}", Equal(map[string]int{"200": 30, "429": 270})),
	)

	It("that is wrong is refused with the field and the remedy", func(ctx SpecContext) {
		_, err := run(ctx, policy(namespace, -1), "kubectl", "--kubeconfig", kubeconfig, "apply", "-f", "-")
		Expect(err).To(MatchError(ContainSubstring("spec.limits[0].requests")))
	})
})

var _ = Describe("A namespace", func() {
	It("is deleted though Redis is down", func(ctx SpecContext) {
		const namespace = "gone"
		deploy(ctx, namespace)
		enforce(ctx, namespace, policy(namespace, 10))
		scale(ctx, "redis", 0)
		DeferCleanup(func(ctx SpecContext) { scale(ctx, "redis", 1) })
		began := time.Now()
		undeploy(ctx, namespace)
		Expect(time.Since(began)).To(BeNumerically("<", time.Minute))
	})
})
