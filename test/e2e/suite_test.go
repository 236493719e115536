//go:build e2e

package e2e

import (
	"os"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// system is the namespace of the manager.
const system = "tallyman-system"

// patience bounds what takes some seconds on a machine that has nothing else to do.
const patience = 3 * time.Minute

func TestE2E(t *testing.T) {
	RegisterFailHandler(Fail)
	EnforceDefaultTimeoutsWhenUsingContexts()
	SetDefaultEventuallyTimeout(patience)
	SetDefaultEventuallyPollingInterval(250 * time.Millisecond)
	RunSpecs(t, "e2e")
}

var _ = BeforeSuite(func(ctx SpecContext) {
	if kubeconfig = os.Getenv("E2E_KUBECONFIG"); kubeconfig == "" {
		createCluster(ctx)
		if os.Getenv("E2E_KEEP") == "" {
			DeferCleanup(deleteCluster)
		}
	}
	By("installing Tallyman and a Redis")
	install(ctx, currentInstaller)
})

var _ = JustAfterEach(func(ctx SpecContext) {
	if CurrentSpecReport().Failed() {
		describe(ctx)
	}
})
