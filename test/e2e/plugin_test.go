//go:build e2e

package e2e

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// As docs/plugin.md has it, through the API server and the kubelet to real sidecars.
var _ = Describe("The plugin", Ordered, func() {
	const (
		namespace = "desk"
		limit     = 50
		question  = "GET /"
		header    = "X-Api-Key: alice"
		no        = 3 // exit code
	)
	var plugin string
	tallyman := func(ctx context.Context, args ...string) (out string, code int) {
		GinkgoHelper()
		out, err := run(ctx, "", plugin, append([]string{"--kubeconfig", kubeconfig, "--namespace", namespace}, args...)...)
		if exit, exited := errors.AsType[*exec.ExitError](err); exited {
			return out, exit.ExitCode()
		}
		Expect(err).NotTo(HaveOccurred())
		return out, 0
	}
	explain := func(ctx context.Context) (out string, code int) {
		GinkgoHelper()
		return tallyman(ctx, "explain", "deployment/orders", "--request", question, "-H", header)
	}

	BeforeAll(func(ctx SpecContext) {
		plugin = filepath.Join(GinkgoT().TempDir(), "kubectl-tallyman")
		mustRun(ctx, "", "go", "build", "-o", plugin, root+"/cmd/kubectl-tallyman")
		deploy(ctx, namespace)
		DeferCleanup(func(ctx SpecContext) { undeploy(ctx, namespace) })
		enforce(ctx, namespace, policy(namespace, limit))
	})

	It("tells whether all pods enforce, and how the store is", func(ctx SpecContext) {
		out, code := tallyman(ctx, "status")
		Expect(code).To(BeZero(), out)
		Expect(out).To(And(ContainSubstring("Policy orders is enforced by all its pods."), ContainSubstring("3/3"), ContainSubstring("STORE NODE")))
	})

	It("tells what would become of a request, and why", func(ctx SpecContext) {
		out, code := explain(ctx)
		Expect(code).To(BeZero(), out)
		Expect(out).To(ContainSubstring("would be admitted"))
		load(ctx, namespace, "-n", "60", "-c", "8", "-header", header)
		out, code = explain(ctx)
		Expect(code).To(Equal(no), out)
		Expect(out).To(And(ContainSubstring("would be refused by all of policy orders"), ContainSubstring("tallyman:c:"+namespace+":orders:all:")))
	})

	It("tells who is hitting the limit", func(ctx SpecContext) {
		var out string
		loadDuring(ctx, namespace, func() { out, _ = tallyman(ctx, "top", "--once", "--reveal") }, "-header", header)
		Expect(out).To(MatchRegexp(`(?m)^orders +all +alice +[0-9.]*[1-9]`), "alice is refused")
	})

	It("gives a client its limit back, by all pods", func(ctx SpecContext) {
		_, code := tallyman(ctx, "reset", "orders", "all", "--key", "alice", "--yes")
		Expect(code).To(BeZero())
		Eventually(func(ctx SpecContext) int { // another pod may still remember the refusal, for a second
			_, code := explain(ctx)
			return code
		}).WithContext(ctx).Should(BeZero())
		Eventually(func(ctx SpecContext) int {
			return load(ctx, namespace, "-n", "1", "-header", header).Statuses["200"]
		}).WithContext(ctx).Should(Equal(1))
		Expect(kubectl(ctx, "get", "events", "--namespace", namespace, "--field-selector", "reason=CounterReset",
			"--output", "jsonpath={.items[*].message}")).To(And(ContainSubstring("tallyman:c:"), Not(ContainSubstring("alice"))))
	})

	It("bans a client, and lets it in again", func(ctx SpecContext) {
		admitted := func(ctx SpecContext) int {
			return load(ctx, namespace, "-n", "10", "-c", "4", "-header", "X-Api-Key: mallory").Statuses["200"]
		}
		_, code := tallyman(ctx, "ban", "orders", "all", "--key", "mallory", "--yes")
		Expect(code).To(BeZero())
		awaitEnforced(ctx, namespace)
		Expect(admitted(ctx)).To(BeZero())
		_, code = tallyman(ctx, "unban", "orders", "all", "--key", "mallory", "--yes")
		Expect(code).To(BeZero())
		awaitEnforced(ctx, namespace)
		Expect(admitted(ctx)).To(Equal(10))
	})
})
