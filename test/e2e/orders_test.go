//go:build e2e

package e2e

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

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

	It("never touches the counts of another namespace's policy of the same name", func(ctx SpecContext) {
		const other = "other"
		deploy(ctx, other)
		DeferCleanup(func(ctx SpecContext) { undeploy(ctx, other) })
		enforce(ctx, other, policy(other, 10))
		Expect(load(ctx, other, "-n", "30").Statuses).To(Equal(map[string]int{"200": 10, "429": 20}))
		Expect(load(ctx, namespace, "-n", "10").Statuses).To(Equal(map[string]int{"429": 10}))
	})

	Context("while no manager runs", func() {
		BeforeAll(func(ctx SpecContext) {
			scale(ctx, "tallyman-manager", 0)
			DeferCleanup(func(ctx SpecContext) { scale(ctx, "tallyman-manager", 2) })
		})

		It("goes on", func(ctx SpecContext) {
			Expect(load(ctx, namespace, "-n", "20").Statuses).To(Equal(map[string]int{"429": 20}))
		})

		It("has new pods wait for their sidecar", func(ctx SpecContext) {
			kubectl(ctx, "delete", "pod", "--namespace", namespace, "--selector", "app=orders")
			Eventually(func(ctx SpecContext) string {
				return kubectl(ctx, "get", "events", "--namespace", namespace, "--field-selector", "reason=FailedCreate",
					"--output", "jsonpath={.items[*].message}")
			}).WithContext(ctx).Should(ContainSubstring("webhook"))
		})

		It("lets pods start that nobody opted in, and no others", func(ctx SpecContext) {
			const bystander = "bystander"
			kubectl(ctx, "run", bystander, "--image", "tallyman/app:dev", "--", "wait")
			DeferCleanup(func(ctx SpecContext) { kubectl(ctx, "delete", "pod", bystander, "--grace-period", "1") })
			kubectl(ctx, "wait", "--timeout", patience.String(), "--for", "condition=Ready", "pod/"+bystander)
			_, err := tryKubectl(ctx, "run", "asks", "--image", "tallyman/app:dev", "--labels", "tallyman.dev/inject=true", "--", "wait")
			Expect(err).To(MatchError(ContainSubstring("pod.inject.tallyman.dev")))
		})
	})

	It("is enforced by the new pods when there is a manager", func(ctx SpecContext) {
		// By itself the ReplicaSet tries again after up to 17 minutes: docs/injection.md.
		restart(ctx, namespace)
		awaitEnforced(ctx, namespace)
		Expect(load(ctx, namespace, "-n", "20").Statuses).To(Equal(map[string]int{"429": 20}))
	})

	It("lets a Job end that has a sidecar", func(ctx SpecContext) {
		applyFile(ctx, "testdata/job.yaml", namespace)
		kubectl(ctx, "wait", "--namespace", namespace, "--timeout", patience.String(), "--for", "condition=Complete", "job/report")
		Expect(kubectl(ctx, "get", "pods", "--namespace", namespace, "--selector", "app=report", "--output",
			"jsonpath={.items[*].spec.initContainers[*].name}")).To(Equal("tallyman"))
	})

	It("loses no request in a rolling update", func(ctx SpecContext) {
		got := loadDuring(ctx, namespace, func() { restart(ctx, namespace) })
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
		undeploy(ctx, namespace)
	})
})
