package controller_test

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/inject"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

var _ = Describe("A policy", func() {
	var w *world

	BeforeEach(func(ctx context.Context) { w = newWorld(ctx) })

	It("is published, and its status follows what the pods report", func(ctx context.Context) {
		w.startManager()
		p := w.targeting("orders", "Deployment", "orders")
		w.create(ctx, w.deployment("orders", orders), w.pod("orders-a"), w.pod("orders-b"), p)

		Eventually(ctx, conditions(p)).Should(Equal(map[string]string{
			"Accepted":   "True Accepted 1",
			"Programmed": "True Programmed 1",
			"Enforced":   "False NoEnforcers 1",
		}))
		definitions, err := w.published(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(definitions).To(HaveLen(1))
		Expect(definitions["orders"].Selectors).To(Equal([]policy.Selector{{MatchLabels: orders}}))
		Expect(definitions["orders"].UID).To(BeEquivalentTo(p.UID))
		for _, script := range scripts {
			Expect(script.Exists(ctx, w.client()).Result()).To(Equal([]bool{true}))
		}

		w.beat(ctx, "orders-a", map[string]int64{"orders": 1})
		Eventually(ctx, conditions(p)).Should(HaveKeyWithValue("Enforced", "False Partial 1"))
		Expect(message(p, "Enforced")).To(HavePrefix("1/2 pods enforce generation 1; without a sidecar: orders-b; " +
			"orders-b has none: nothing asks for one: label its namespace tallyman.dev/injection=enabled"))
		Expect(p.Status.Enforcers).To(Equal(v1alpha1.NewEnforcers(1, 2)))

		w.beat(ctx, "orders-b", map[string]int64{"orders": 1})
		Eventually(ctx, conditions(p)).Should(HaveKeyWithValue("Enforced", "True Enforced 1"))
		Expect(p.Status.Enforcers).To(Equal(v1alpha1.NewEnforcers(2, 2)))
	})

	It("that is edited has a status of the new generation within five seconds (K1)", func(ctx context.Context) {
		w.startManager()
		p := w.policy("orders")
		w.create(ctx, p)
		Eventually(ctx, conditions(p)).Should(HaveKeyWithValue("Programmed", "True Programmed 1"))

		edit(ctx, p, func(s *v1alpha1.RateLimitPolicySpec) { s.Limits[0].Requests = new(int64(150)) })
		Eventually(ctx, conditions(p), 5*time.Second).Should(Equal(map[string]string{
			"Accepted":   "True Accepted 2",
			"Programmed": "True Programmed 2",
			"Enforced":   "False NoEnforcers 2",
		}))
		definitions, err := w.published(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(*definitions["orders"].Spec.Limits[0].Requests).To(BeEquivalentTo(150))
	})

	It("is not enforced by anyone once its sidecars are gone (K3)", func(ctx context.Context) {
		w.startManager()
		p := w.policy("orders")
		pod := w.pod("orders-a")
		w.create(ctx, pod, p)
		w.beat(ctx, "orders-a", map[string]int64{"orders": 1})
		Eventually(ctx, conditions(p)).Should(HaveKeyWithValue("Enforced", "True Enforced 1"))

		Expect(w.store.Leave(ctx, w.ns, "orders-a")).To(Succeed())
		Eventually(ctx, conditions(p)).Should(HaveKeyWithValue("Enforced", "False NoEnforcers 1"))
		Expect(p.Status.Enforcers.Summary).To(Equal("0/1"))

		pod.Status.Phase = corev1.PodSucceeded
		Expect(admin.Status().Update(ctx, pod)).To(Succeed())
		Eventually(ctx, func(ctx context.Context) (string, error) {
			_, err := conditions(p)(ctx)
			return p.Status.Enforcers.Summary, err
		}).Should(Equal("0/0"), "a pod that has ended is none that should enforce")
	})

	It("names the pods that have no sidecar, and why (K7)", func(ctx context.Context) {
		w.startManager()
		p := w.policy("orders")
		injected, skipped := w.pod("orders-a"), w.pod("orders-b")
		injected.Spec.InitContainers = []corev1.Container{{Name: inject.Container, Image: "example.com/sidecar"}}
		skipped.Annotations = map[string]string{inject.ReasonAnnotation: "its ports have no names"}
		w.create(ctx, injected, skipped, p)
		Eventually(ctx, conditions(p)).Should(HaveKeyWithValue("Enforced", "False NoEnforcers 1"))
		Eventually(ctx, func(ctx context.Context) (string, error) {
			_, err := conditions(p)(ctx)
			return message(p, "Enforced"), err
		}).Should(Equal("None of 2 selected pods runs an enforcer that reports the policy: orders-a; " +
			"without a sidecar: orders-b; orders-b has none: its ports have no names"))

		injected.Status.InitContainerStatuses = []corev1.ContainerStatus{{
			Name: inject.Container, Image: "example.com/sidecar",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "in 10s"}},
		}}
		Expect(admin.Status().Update(ctx, injected)).To(Succeed())
		Eventually(ctx, func(ctx context.Context) (string, error) {
			_, err := conditions(p)(ctx)
			return message(p, "Enforced"), err
		}).Should(ContainSubstring("orders-a; orders-a is not ready: its sidecar cannot start: CrashLoopBackOff; " +
			"see kubectl logs orders-a --container tallyman; without a sidecar"))
	})

	It("that is deleted leaves no definition and no entry in the index (P1)", func(ctx context.Context) {
		w.startManager()
		p := w.policy("orders")
		w.create(ctx, p)
		Eventually(ctx, w.published).Should(HaveLen(1))

		Expect(admin.Delete(ctx, p)).To(Succeed())
		Eventually(ctx, w.store.Namespaces).ShouldNot(ContainElement(w.ns))
		Expect(w.client().Exists(ctx, w.policiesKey()).Result()).To(BeZero())
		Expect(w.client().Exists(ctx, w.revisionKey()).Result()).
			To(BeEquivalentTo(1), "the revision tells enforcers of the deletion")
	})

	It("is not enforced from its deletion on, though a finalizer holds it", func(ctx context.Context) {
		w.startManager()
		p := w.policy("orders")
		p.Finalizers = []string{"example.com/hold"}
		w.create(ctx, p)
		Eventually(ctx, w.published).Should(HaveLen(1))

		Expect(admin.Delete(ctx, p)).To(Succeed())
		Eventually(ctx, w.published).Should(BeEmpty())

		Expect(admin.Get(ctx, client.ObjectKeyFromObject(p), p)).To(Succeed())
		p.Finalizers = nil
		Expect(admin.Update(ctx, p)).To(Succeed())
	})

	It("waits for its target to appear, and ends with it", func(ctx context.Context) {
		w.startManager()
		p := w.targeting("orders", "Deployment", "orders")
		w.create(ctx, p)
		Eventually(ctx, conditions(p)).Should(Equal(map[string]string{"Accepted": "False TargetNotFound 1"}))
		Expect(message(p, "Accepted")).To(ContainSubstring(`Deployment "orders" does not exist`))
		Expect(w.published(ctx)).To(BeEmpty())

		d := w.deployment("orders", orders)
		w.create(ctx, d)
		Eventually(ctx, conditions(p)).Should(HaveKeyWithValue("Accepted", "True Accepted 1"))
		Eventually(ctx, w.published).Should(HaveLen(1))

		Expect(admin.Delete(ctx, d)).To(Succeed())
		Eventually(ctx, conditions(p)).Should(Equal(map[string]string{"Accepted": "False TargetNotFound 1"}))
		Expect(w.published(ctx)).To(BeEmpty())
	})

	It("follows the selector of its Service", func(ctx context.Context) {
		w.startManager()
		p := w.targeting("orders", "Service", "orders")
		s := w.service("orders", nil)
		w.create(ctx, s, p)
		Eventually(ctx, conditions(p)).Should(Equal(map[string]string{"Accepted": "False Invalid 1"}))
		Expect(message(p, "Accepted")).To(ContainSubstring("spec.targetRefs[0]: Service \"orders\" has no selector"))

		selectors := func(ctx context.Context) ([]policy.Selector, error) {
			definitions, err := w.published(ctx)
			return definitions["orders"].Selectors, err
		}
		for _, app := range []string{"orders", "orders-v2"} {
			before := s.DeepCopy()
			s.Spec.Selector = map[string]string{"app": app}
			Expect(admin.Patch(ctx, s, client.MergeFrom(before))).To(Succeed())
			Eventually(ctx, selectors).Should(Equal([]policy.Selector{{MatchLabels: s.Spec.Selector}}))
		}
	})

	It("whose CEL does not compile is not enforced, and its status names the field", func(ctx context.Context) {
		w.startManager()
		p := w.policy("orders")
		w.create(ctx, p)
		Eventually(ctx, w.published).Should(HaveLen(1))

		edit(ctx, p, func(s *v1alpha1.RateLimitPolicySpec) {
			s.Limits[0].Match = []v1alpha1.Match{{Expression: "request.nonsense == 1"}}
		})
		Eventually(ctx, conditions(p)).Should(Equal(map[string]string{"Accepted": "False Invalid 2"}))
		Expect(message(p, "Accepted")).To(ContainSubstring("spec.limits[0].match[0].expression: "))
		Expect(p.Status.Enforcers).To(BeNil())
		Expect(w.published(ctx)).To(BeEmpty())

		edit(ctx, p, func(s *v1alpha1.RateLimitPolicySpec) { s.Limits[0].Match = nil })
		Eventually(ctx, conditions(p)).Should(HaveKeyWithValue("Programmed", "True Programmed 3"))
		Expect(w.published(ctx)).To(HaveLen(1))
	})

	It("has nothing to do with one of the same name in another namespace", func(ctx context.Context) {
		other := &world{ns: newNamespace(ctx), redis: w.redis, store: w.store}
		w.startManager()
		mine, theirs := w.policy("orders"), other.policy("orders")
		theirs.Spec.Limits[0].Requests = new(int64(7))
		w.create(ctx, mine, theirs)
		Eventually(ctx, w.published).Should(HaveLen(1))
		Eventually(ctx, other.published).Should(HaveLen(1))

		Expect(admin.Delete(ctx, mine)).To(Succeed())
		Eventually(ctx, w.published).Should(BeEmpty())
		definitions, err := other.published(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(*definitions["orders"].Spec.Limits[0].Requests).To(BeEquivalentTo(7))
	})
})

var _ = Describe("An idle cluster", func() {
	It("writes no status and publishes nothing, over resyncs and a restart of the manager", func(ctx context.Context) {
		w := newWorld(ctx)
		stop := w.startManager()
		enforced, invalid := w.policy("enforced"), w.targeting("invalid", "Deployment", "none")
		w.create(ctx, w.pod("orders-a"), enforced, invalid)
		w.beat(ctx, "orders-a", map[string]int64{"enforced": 1})
		Eventually(ctx, conditions(enforced)).Should(HaveKeyWithValue("Enforced", "True Enforced 1"))
		Eventually(ctx, conditions(invalid)).Should(HaveKeyWithValue("Accepted", "False TargetNotFound 1"))
		before := []string{enforced.ResourceVersion, invalid.ResourceVersion, w.revision(ctx)}
		var patches int64
		Eventually(ctx, func() int64 {
			patches = w.patches.Load()
			w.resyncs(ctx, 2)
			return w.patches.Load() - patches
		}).Should(BeZero(), "the manager's cache has caught up with what it wrote")

		w.resyncs(ctx, 5)
		stop()
		w.beat(ctx, "orders-a", map[string]int64{"enforced": 1}) // a report holds for 15 s
		w.startManager()
		w.resyncs(ctx, 3)

		for _, p := range []*v1alpha1.RateLimitPolicy{enforced, invalid} {
			Expect(admin.Get(ctx, client.ObjectKeyFromObject(p), p)).To(Succeed())
		}
		Expect([]string{enforced.ResourceVersion, invalid.ResourceVersion, w.revision(ctx)}).To(Equal(before))
		Expect(w.patches.Load()).To(Equal(patches), "not even a patch without effect")
	})
})

func (w *world) revision(ctx context.Context) string {
	GinkgoHelper()
	revision, err := w.client().Get(ctx, w.revisionKey()).Result()
	Expect(err).NotTo(HaveOccurred())
	return revision
}

var _ = Describe("Events", func() {
	It("tell of transitions, once", func(ctx context.Context) {
		w := newWorld(ctx)
		w.startManager()
		p := w.targeting("orders", "Deployment", "orders")
		w.create(ctx, p)
		Eventually(ctx, conditions(p)).Should(HaveKeyWithValue("Accepted", "False TargetNotFound 1"))
		w.create(ctx, w.deployment("orders", orders))
		Eventually(ctx, conditions(p)).Should(HaveKeyWithValue("Programmed", "True Programmed 1"))
		w.resyncs(ctx, 5)

		Eventually(ctx, w.events).Should(ConsistOf(
			"Warning TargetNotFound", "Normal PolicyProgrammed"))
	})

	It("tell of a condition whose message is longer than an event takes", func(ctx context.Context) {
		w := newWorld(ctx)
		w.startManager()
		p := w.policy("orders")
		p.Spec.Selector = nil
		for i := range 5 {
			p.Spec.TargetRefs = append(p.Spec.TargetRefs, v1alpha1.TargetRef{
				Kind: "Service", Name: fmt.Sprintf("%0210d", i),
			})
		}
		w.create(ctx, p)
		Eventually(ctx, w.events).Should(ConsistOf("Warning TargetNotFound"))
		Expect(conditions(p)(ctx)).To(HaveKeyWithValue("Accepted", "False TargetNotFound 1"))
		Expect(len(message(p, "Accepted"))).To(BeNumerically(">", 1024))
	})
})

var _ = Describe("Pods without a sidecar", func() {
	It("that were to have one are told of, once, whoever asked (K7)", func(ctx context.Context) {
		w := newWorld(ctx)
		w.startManager()
		// The webhook is asked about new pods only: these were there before it.
		byItself, byNamespace, optedOut := w.pod("by-itself"), w.pod("by-namespace"), w.pod("opted-out")
		optedOut.Labels = map[string]string{"app": "orders", inject.PodLabel: "false"}
		injected := w.pod("injected")
		injected.Spec.InitContainers = []corev1.Container{{Name: inject.Container, Image: "example.com/sidecar"}}
		p := w.policy("orders")
		w.create(ctx, byItself, byNamespace, optedOut, injected, w.policy("others"), p)
		Eventually(ctx, conditions(p)).Should(HaveKeyWithValue("Enforced", "False NoEnforcers 1"))
		w.resyncs(ctx, 2)
		Expect(w.podEvents(ctx)).To(BeEmpty(), "nobody has asked")

		label(ctx, byItself, inject.PodLabel, "true")
		told := "Warning SidecarMissing by-itself"
		Eventually(ctx, w.podEvents).Should(ConsistOf(HavePrefix(told)))
		Expect(w.podEvents(ctx)).To(ConsistOf(And(ContainSubstring("rollout restart"), HaveSuffix("orders, others"))))

		label(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.ns}}, inject.NamespaceLabel, "enabled")
		both := ConsistOf(HavePrefix(told), HavePrefix("Warning SidecarMissing by-namespace"))
		Eventually(ctx, w.podEvents).Should(both)

		edit(ctx, p, func(s *v1alpha1.RateLimitPolicySpec) { s.Limits[0].Requests = new(int64(7)) })
		Eventually(ctx, conditions(p)).Should(HaveKeyWithValue("Enforced", "False NoEnforcers 2"))
		w.resyncs(ctx, 3)
		Expect(w.podEvents(ctx)).To(both, "nothing has changed about the pods")
	})
})

var _ = Describe("Services that lead past sidecars", func() {
	It("are named by the policies that they evade, for as long as they do", func(ctx context.Context) {
		w := newWorld(ctx)
		w.startManager()
		pod, service, p := w.pod("orders-1"), w.service("orders", orders), w.policy("orders")
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}
		injected, err := inject.Inject(pod, inject.Config{Image: "example.com/sidecar:1", StoreSecret: "tallyman-store"})
		Expect(err).NotTo(HaveOccurred())
		service.Spec.Ports = []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}
		w.create(ctx, injected.Pod, service, p)
		Eventually(ctx, conditions(p)).Should(HaveKeyWithValue("Bypassed", "True NumericTargetPort 1"))
		Expect(message(p, "Bypassed")).To(And(ContainSubstring("Service orders"), ContainSubstring("write targetPort: http")))

		before := service.DeepCopy()
		service.Spec.Ports[0].TargetPort = intstr.FromString("http")
		Expect(admin.Patch(ctx, service, client.MergeFrom(before))).To(Succeed())
		Eventually(ctx, conditions(p)).ShouldNot(HaveKey("Bypassed"))
	})
})

// label sets one label of an object.
func label(ctx context.Context, o client.Object, key, value string) {
	GinkgoHelper()
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, key, value)
	Expect(admin.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch))).To(Succeed())
}

// podEvents are those about pods: "type reason pod: message".
func (w *world) podEvents(ctx context.Context) ([]string, error) {
	var list eventsv1.EventList
	err := admin.List(ctx, &list, client.InNamespace(w.ns))
	var all []string
	for _, e := range list.Items {
		if e.Regarding.Kind == "Pod" {
			all = append(all, fmt.Sprintf("%s %s %s: %s", e.Type, e.Reason, e.Regarding.Name, e.Note))
		}
		if e.Regarding.Kind == "Pod" && e.Series != nil {
			all = append(all, "again "+e.Regarding.Name)
		}
	}
	return all, err
}

func (w *world) events(ctx context.Context) ([]string, error) {
	var list corev1.EventList
	err := admin.List(ctx, &list, client.InNamespace(w.ns))
	var all []string
	for _, e := range list.Items {
		if e.InvolvedObject.Kind == "RateLimitPolicy" {
			all = append(all, e.Type+" "+e.Reason)
		}
		if e.Series != nil {
			all = append(all, "again "+e.Reason)
		}
	}
	return all, err
}

var _ = Describe("Metrics", func() {
	It("count policies by condition, and publishes", func(ctx context.Context) {
		w := newWorld(ctx)
		w.startManager()
		p := w.policy("orders")
		w.create(ctx, p, w.targeting("lost", "StatefulSet", "none"))
		Eventually(ctx, conditions(p)).Should(HaveKeyWithValue("Programmed", "True Programmed 1"))

		Eventually(ctx, w.metrics).Should(And(
			HaveKeyWithValue("tallyman_store_up", 1.0),
			HaveKeyWithValue("tallyman_publishes_total changed", BeNumerically(">=", 1)),
			HaveKeyWithValue("tallyman_policies Accepted True", 1.0),
			HaveKeyWithValue("tallyman_policies Accepted False", 1.0),
			HaveKeyWithValue("tallyman_policies Programmed True", 1.0),
			HaveKeyWithValue("tallyman_policies Enforced False", 1.0),
			HaveKeyWithValue("tallyman_policies Enforced Unknown", 0.0),
		))
		w.redis.Kill()
		Expect(w.metrics()).To(HaveKeyWithValue("tallyman_store_up", 0.0))
	})
})

// metrics has the values of counters and gauges by name and label values.
func (w *world) metrics() (map[string]float64, error) {
	families, err := w.registry.Gather()
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			values[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return values, err
}
