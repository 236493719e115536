package controller_test

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

var _ = Describe("A store that loses or garbles what it holds", func() {
	var (
		w *world
		p *v1alpha1.RateLimitPolicy
	)
	BeforeEach(func(ctx context.Context) {
		w = newWorld(ctx)
		w.startManager()
		p = w.policy("orders")
		w.create(ctx, p)
		Eventually(ctx, w.published).Should(HaveLen(1))
	})

	It("is repaired after FLUSHALL, scripts and all", func(ctx context.Context) {
		Expect(w.client().FlushAll(ctx).Err()).To(Succeed())
		Expect(w.client().ScriptFlush(ctx).Err()).To(Succeed())
		Eventually(ctx, w.published).Should(HaveLen(1))
		Eventually(ctx, w.store.Namespaces).Should(ContainElement(w.ns))
		Eventually(ctx, func(ctx context.Context) ([]bool, error) {
			return scripts["decide.lua"].Exists(ctx, w.client()).Result()
		}).Should(Equal([]bool{true}))
	})

	It("is repaired after it was replaced by an empty one", func(ctx context.Context) {
		w.redis.Restart(GinkgoTB())
		Eventually(ctx, w.published).Should(HaveLen(1))
	})

	DescribeTable("is repaired after garbage was written to", func(ctx context.Context, garble func(context.Context) error) {
		Expect(garble(ctx)).To(Succeed())
		Eventually(ctx, w.published).Should(HaveLen(1))
		Expect(w.client().HLen(ctx, w.policiesKey()).Result()).To(BeEquivalentTo(1))
		Eventually(ctx, w.store.Namespaces).Should(ConsistOf(w.ns))
	},
		Entry("a definition", func(ctx context.Context) error {
			return w.client().HSet(ctx, w.policiesKey(), "orders", "{garbage").Err()
		}),
		Entry("a definition that no object backs", func(ctx context.Context) error {
			return w.client().HSet(ctx, w.policiesKey(), "orders", "{garbage", "foreign", "{}").Err()
		}),
		Entry("the revision", func(ctx context.Context) error {
			return w.client().Set(ctx, w.revisionKey(), "garbage", 0).Err()
		}),
		Entry("the key of the definitions, with another type", func(ctx context.Context) error {
			return w.client().Set(ctx, w.policiesKey(), "garbage", 0).Err()
		}),
		Entry("the index of namespaces, with another type", func(ctx context.Context) error {
			return w.client().Set(ctx, "tallyman:namespaces", "garbage", 0).Err()
		}),
	)
})

var _ = Describe("A store that fails", func() {
	It("is told from one that works, in the status, and is taken up again (K3)", func(ctx context.Context) {
		w := newWorld(ctx)
		w.startManager()
		p := w.policy("orders")
		w.create(ctx, w.pod("orders-a"), p)
		w.beat(ctx, "orders-a", map[string]int64{"orders": 1})
		Eventually(ctx, conditions(p)).Should(HaveKeyWithValue("Enforced", "True Enforced 1"))

		w.redis.Kill()
		Eventually(ctx, conditions(p)).Should(Equal(unavailable(1)))
		Expect(message(p, "Programmed")).To(HaveSuffix("connection refused"))
		Expect(p.Status.Enforcers).To(BeNil())

		version := p.ResourceVersion
		w.resyncs(ctx, 3)
		Expect(conditions(p)(ctx)).To(Equal(unavailable(1)))
		Expect(p.ResourceVersion).To(Equal(version), "retries write no status")

		w.redis.Restart(GinkgoTB())
		w.beat(ctx, "orders-a", map[string]int64{"orders": 1})
		Eventually(ctx, conditions(p)).Should(Equal(map[string]string{
			"Accepted": "True Accepted 1", "Programmed": "True Programmed 1", "Enforced": "True Enforced 1",
		}))
	})

	It("at the manager's start does not keep it from starting", func(ctx context.Context) {
		w := newWorld(ctx)
		w.redis.Kill()
		w.startManager()
		p := w.policy("orders")
		w.create(ctx, p)
		Eventually(ctx, conditions(p)).Should(Equal(unavailable(1)))

		w.redis.Restart(GinkgoTB())
		Eventually(ctx, conditions(p)).Should(HaveKeyWithValue("Programmed", "True Programmed 1"))
	})

	It("by hanging delays no status by more than five seconds, in any namespace (K1)", func(ctx context.Context) {
		w := newWorld(ctx)
		w.startManager()
		p := w.policy("orders")
		w.create(ctx, p)
		Eventually(ctx, conditions(p)).Should(HaveKeyWithValue("Programmed", "True Programmed 1"))

		w.redis.Pause()
		DeferCleanup(w.redis.Resume)
		others := make([]*v1alpha1.RateLimitPolicy, 40)
		for i := range others {
			others[i] = (&world{ns: newNamespace(ctx)}).policy("orders")
			w.create(ctx, others[i])
		}
		edit(ctx, p, func(s *v1alpha1.RateLimitPolicySpec) { s.Limits[0].Requests = new(int64(150)) })
		edited := time.Now()
		Eventually(ctx, conditions(p), 5*time.Second).Should(Equal(unavailable(2)))
		Expect(message(p, "Programmed")).To(HaveSuffix("timeout"))
		for _, other := range others {
			Eventually(ctx, conditions(other), time.Until(edited.Add(5*time.Second))).Should(Equal(unavailable(1)))
		}

		w.redis.Resume()
		Eventually(ctx, conditions(p)).Should(HaveKeyWithValue("Programmed", "True Programmed 2"))
	})

	It("by refusing the manager shows no secret", func(ctx context.Context) {
		w := newWorld(ctx, "--requirepass", "hunter2")
		w.store = newStore(strings.Replace(w.redis.URL(), "hunter2", "hunter3", 1))
		w.startManager()
		p := w.policy("orders")
		w.create(ctx, p)
		Eventually(ctx, conditions(p)).Should(Equal(map[string]string{
			"Accepted": "True Accepted 1", "Programmed": "False StoreUnauthorized 1", "Enforced": "Unknown StoreUnauthorized 1",
		}))
		Eventually(ctx, w.events).Should(ConsistOf("Normal PolicyAccepted", "Warning StoreUnauthorized"))

		var events corev1.EventList
		Expect(admin.List(ctx, &events, client.InNamespace(w.ns))).To(Succeed())
		text, err := json.Marshal([]any{p, events})
		Expect(err).NotTo(HaveOccurred())
		Expect(string(text)).NotTo(ContainSubstring("hunter"))
		Expect(logs.Contents()).To(ContainSubstring("The store failed"))
		Expect(logs.Contents()).NotTo(ContainSubstring("hunter"))
	})
})

func unavailable(generation int) map[string]string {
	g := string(rune('0' + generation))
	return map[string]string{
		"Accepted": "True Accepted " + g, "Programmed": "False StoreUnavailable " + g, "Enforced": "Unknown StoreUnavailable " + g,
	}
}

var _ = Describe("The sweep", func() {
	It("removes what no object backs, and nothing else", func(ctx context.Context) {
		w := newWorld(ctx)
		kept := w.policy("orders")
		w.create(ctx, kept)
		for _, ns := range []string{w.ns, "gone"} {
			_, err := w.store.Store.Publish(ctx, ns, []policy.Definition{{Namespace: ns, Name: "left-over", Selectors: []policy.Selector{{}}}})
			Expect(err).NotTo(HaveOccurred())
		}
		w.startManager()

		Eventually(ctx, w.store.Namespaces).Should(ConsistOf(w.ns))
		Expect(w.client().Exists(ctx, "tallyman:policies:{gone}").Result()).To(BeZero())
		Eventually(ctx, func(ctx context.Context) ([]string, error) { return w.client().HKeys(ctx, w.policiesKey()).Result() }).
			Should(ConsistOf("orders"))
	})
})
