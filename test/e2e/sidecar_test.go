//go:build e2e

package e2e

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("A sidecar", Ordered, func() {
	const namespace = "sidecar"
	BeforeAll(func(ctx SpecContext) {
		deploy(ctx, namespace)
		DeferCleanup(func(ctx SpecContext) { undeploy(ctx, namespace) })
	})

	It("that crashes comes back to the same counts, and the app does not end", func(ctx SpecContext) {
		enforce(ctx, namespace, policy(namespace, 50))
		Expect(load(ctx, namespace, "-n", "20").Statuses).To(Equal(map[string]int{"200": 20}))
		pods := strings.Fields(kubectl(ctx, "get", "pods", "--namespace", namespace, "--selector", "app=orders",
			"--output", "jsonpath={.items[*].metadata.name}"))
		for _, pod := range pods {
			// In the sidecar's process namespace, where it is process 1.
			kubectl(ctx, "debug", "--namespace", namespace, "pod/"+pod, "--target", "tallyman", "--profile", "restricted",
				"--image", "tallyman/app:dev", "--", "/program", "crash")
		}
		restarts := `jsonpath={range .items[*]}{.status.initContainerStatuses[0].restartCount} ` +
			`{.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].ready}{"\n"}{end}`
		Eventually(func(ctx SpecContext) string {
			return kubectl(ctx, "get", "pods", "--namespace", namespace, "--selector", "app=orders", "--output", restarts)
		}).WithContext(ctx).Should(Equal(strings.Repeat("1 0 true\n", len(pods))))
		awaitService(ctx, namespace)
		Expect(load(ctx, namespace, "-n", "40").Statuses).To(Equal(map[string]int{"200": 30, "429": 10}))
	})

	Context("in front of streams", func() {
		BeforeAll(func(ctx SpecContext) {
			kubectl(ctx, "delete", "ratelimitpolicy", "orders", "--namespace", namespace)
			enforce(ctx, namespace, strings.Replace(policy(namespace, 2), "header: {name: X-Api-Key}", "path: {}", 1))
		})

		DescribeTable("counts each as one request, and passes it on as it comes", func(ctx SpecContext, kind, admitted, refused string) {
			open := func() string {
				return strings.TrimSpace(kubectl(ctx, "exec", "--namespace", namespace, "client", "--", "/program", kind, "orders:80"))
			}
			Expect([]string{open(), open(), open()}).To(Equal([]string{admitted, admitted, refused}))
		},
			Entry("WebSocket", "websocket", "101 to fro", "429"),
			Entry("server-sent events", "events", "200 1 2", "429"),
			Entry("a gRPC call", "unary", "SERVING", "ResourceExhausted with RetryInfo"),
			Entry("a gRPC stream", "stream", "SERVING", "ResourceExhausted with RetryInfo"),
		)
	})
})
