package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/operator"
)

// enforced has the manager say that so many of three pods enforce a policy.
func (w *world) enforced(p *v1alpha1.RateLimitPolicy, current int32) {
	w.t.Helper()
	status, reason := metav1.ConditionTrue, v1alpha1.ReasonEnforced
	if current < 3 {
		status, reason = metav1.ConditionFalse, v1alpha1.ReasonPartial
	}
	now := metav1.Now()
	p.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAccepted},
		{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonProgrammed},
		{Type: v1alpha1.ConditionEnforced, Status: status, Reason: reason, Message: fmt.Sprintf("%d/3 pods enforce generation 1", current)},
	}
	for i := range p.Status.Conditions {
		p.Status.Conditions[i].LastTransitionTime, p.Status.Conditions[i].ObservedGeneration = now, p.Generation
	}
	p.Status.Enforcers = v1alpha1.NewEnforcers(current, 3)
	if err := w.admin.Status().Update(w.t.Context(), p); err != nil {
		w.t.Fatal(err)
	}
}

// manager runs in a system namespace of the test's own, whose name is returned.
func (w *world) manager(health operator.StoreHealth) string {
	w.t.Helper()
	at := serve(w.t, answering(map[string]any{operator.PathStore: health}))
	return w.managerAt(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "system-"}}, at)
}

// managerAt makes a pod for a manager that serves at an address, in a new namespace,
// whose name is returned.
func (w *world) managerAt(system *corev1.Namespace, at string) string {
	w.t.Helper()
	w.create(system)
	pod := w.barePod("tallyman-manager-0")
	pod.Namespace, pod.Labels = system.Name, map[string]string{managerComponent: "manager"}
	w.create(pod)
	if err := w.kubelet.Started(w.t.Context(), pod.Namespace, pod.Name); err != nil {
		w.t.Fatal(err)
	}
	w.kubelet.Forward(pod.Namespace, pod.Name, operator.ManagerPort, at)
	return system.Name
}

// enforcing answers with the limits of a generation of ordersSpec.
func enforcing(generation int64) map[string]any {
	limits := ordersLimits()
	for i := range limits {
		limits[i].Generation = generation
	}
	return map[string]any{operator.PathExplain: operator.Explanation{Allowed: true, Limits: limits}}
}

func TestStatusTellsWhoEnforces(t *testing.T) {
	w := newWorld(t)
	w.deployment("orders")
	p := w.policy("orders", ordersSpec)
	w.pod("orders-a", answering(enforcing(1)))
	w.pod("orders-b", answering(enforcing(2)))
	w.create(w.barePod("orders-c"))
	w.enforced(p, 3)
	system := w.manager(operator.StoreHealth{Nodes: []operator.NodeHealth{
		{Address: "redis-0:6379", LatencyMicros: 400, Scripts: 7},
		{Address: "redis-1:6379", LatencyMicros: 1500, Scripts: 6, MissingScripts: []string{"decide"}},
		{Address: "redis-2:6379", Error: "connection refused"},
	}})

	stdout, stderr, code := w.run("status", "--system-namespace", system)
	want := strings.ReplaceAll(`Not enforced by all pods: orders (1 of 1 policy)
The store does not answer the manager (1 of 3 nodes): pods that do not reach it either go by each limit's failurePolicy.

NAMESPACE   POLICY  GEN  ACCEPTED  PROGRAMMED  ENFORCED  PODS
shop-12345  orders  1    True      True        True      1/3

NAMESPACE   POD       SIDECAR  ENFORCES
shop-12345  orders-b  v0.1.0   orders 2 (behind)
shop-12345  orders-c  -        it has no sidecar: nothing asks for one: label its namespace tallyman.dev/injection=enabled, and restart its workload (kubectl rollout restart)
shop-12345  orders-a  v0.1.0   orders 1

STORE NODE    PING                           SCRIPTS
redis-0:6379  400µs                          all 7
redis-1:6379  1.5ms                          6, without decide
redis-2:6379  no answer: connection refused  -
`, "shop-12345", w.ns)
	if diff := cmp.Diff(want, stdout); code != exitNo || stderr != "" || diff != "" {
		t.Errorf("exit code %d, %s\n(-want +got):\n%s", code, stderr, diff)
	}
	stdout, _, code = w.run("status", "orders", "--system-namespace", system, "-o", "json")
	var status struct {
		Policies []struct {
			Current  int
			Enforced bool
		}
		Store operator.StoreHealth
	}
	if err := json.Unmarshal([]byte(stdout), &status); err != nil || code != exitNo || status.Policies[0].Current != 1 || len(status.Store.Nodes) != 3 {
		t.Errorf("exit code %d, %v:\n%s", code, err, stdout)
	}
}

func TestStatusIsGoodWhenAllPodsEnforce(t *testing.T) {
	w := newWorld(t)
	w.deployment("orders")
	p := w.policy("orders", ordersSpec)
	for _, name := range []string{"a", "b", "c"} {
		w.pod("orders-"+name, answering(enforcing(1)))
	}
	w.enforced(p, 3)
	stdout, stderr, code := w.run("status", "orders", "--system-namespace", "none")
	if code != 0 || stderr != "" || !strings.HasPrefix(stdout, "Policy orders is enforced by all its pods.\n") ||
		!strings.Contains(stdout, "note: the store's health is not known, which the manager tells: no pod of namespace none") {
		t.Errorf("exit code %d, output:\n%s%s", code, stdout, stderr)
	}

	w.enforced(p, 2)
	if stdout, _, code = w.run("status", "orders"); code != exitNo || !strings.Contains(stdout, "note: policy orders: Enforced is False (Partial): 2/3 pods") {
		t.Errorf("exit code %d, output:\n%s", code, stdout)
	}
	w.policy("new", `{selector: {matchLabels: {app: none}}, limits: [{name: all, requests: 1, window: 1m}]}`)
	if stdout, _, code = w.run("status", "new"); code != exitNo || !strings.Contains(stdout, "note: policy new: the manager has not looked at it") {
		t.Errorf("exit code %d, output:\n%s", code, stdout)
	}
}

func TestStatusOfNothing(t *testing.T) {
	w := newWorld(t)
	if stdout, stderr, code := w.run("status"); code != 0 || !strings.HasPrefix(stdout, "There is no policy.\n") ||
		!strings.Contains(stdout, "note: this is namespace "+w.ns+": --namespace names another one") {
		t.Errorf("exit code %d, output:\n%s%s", code, stdout, stderr)
	}
	if _, stderr, code := w.run("status", "none"); code != exitFailed || !strings.Contains(stderr, `"none" not found`) {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if _, stderr, code := w.run("status", "-A", "none"); code != exitInvalid || !strings.Contains(stderr, "of one namespace") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}
