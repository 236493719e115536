package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/tallyman-dev/tallyman/internal/operator"
)

// documentedRoles are those of docs/plugin.md, by name.
func documentedRoles(t testing.TB) map[string]*rbacv1.Role {
	t.Helper()
	guide, err := os.ReadFile("../../docs/plugin.md")
	if err != nil {
		t.Fatal(err)
	}
	roles := map[string]*rbacv1.Role{}
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(guide, -1) {
		if !strings.Contains(string(block[1]), "kind: Role\n") {
			continue
		}
		var role rbacv1.Role
		if err := yaml.UnmarshalStrict(block[1], &role); err != nil {
			t.Fatalf("%v in:\n%s", err, block[1])
		}
		roles[role.Name] = &role
	}
	return roles
}

// user is somebody new with a documented role in a namespace, less what without names.
func (w *world) user(role, namespace string, without ...string) string {
	w.t.Helper()
	r := documentedRoles(w.t)[role]
	if r == nil {
		w.t.Fatalf("docs/plugin.md has no role %s", role)
	}
	name := strings.Join(append([]string{w.ns, role}, without...), "-without-")
	name = strings.ReplaceAll(name, "/", "-")
	r.ObjectMeta = metav1.ObjectMeta{Name: name, Namespace: namespace}
	for i := range r.Rules {
		for _, resource := range without {
			r.Rules[i].Resources = deleted(r.Rules[i].Resources, resource)
		}
	}
	w.create(r)
	w.bind(name, namespace, name)
	return name
}

func deleted(all []string, one string) []string {
	var rest []string
	for _, s := range all {
		if s != one {
			rest = append(rest, s)
		}
	}
	if rest == nil {
		return []string{"nothing"}
	}
	return rest
}

func (w *world) bind(user, namespace, role string) {
	w.t.Helper()
	w.create(&rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "binding-", Namespace: namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	})
}

func TestTheDocumentedRolesAreEnough(t *testing.T) {
	w := newWorld(t)
	w.deployment("orders")
	p := w.policy("orders", ordersSpec)
	w.enforced(p, 3)
	answers := enforcing(1)
	answers[operator.PathTop] = operator.Top{Limits: []operator.TopLimit{}}
	answers[operator.PathReset] = operator.Changed{RedisKey: aliceCounter}
	answers[operator.PathRefund] = operator.Changed{RedisKey: aliceCounter}
	w.pod("orders-a", answering(answers))
	w.create(w.barePod("bare"))
	system := w.manager(operator.StoreHealth{Nodes: []operator.NodeHealth{{Address: "redis:6379", Scripts: 7}}})

	looks, resets, bans := w.user("tallyman-look", w.ns), w.user("tallyman-reset", w.ns), w.user("tallyman-ban", w.ns)
	asks := w.user("tallyman-look", w.ns, "nothing")
	store := w.user("tallyman-store", system)
	w.bind(asks, system, store)

	for _, c := range []struct {
		user, args string
		code       int
		stdout     string
		stderr     string
	}{
		{looks, "explain deployment/orders", 0, "Deployment orders\n", ""},
		{looks, "explain bare", exitFailed, "", "it has no sidecar: nothing asks for one"},
		{looks, "top --once --interval 500ms", 0, "1 sidecar answered", ""},
		{looks, "status --system-namespace " + system, exitNo, "note: the store's health is not known, which the manager tells: pods is forbidden", ""},
		{asks, "status --system-namespace " + system, exitNo, "redis:6379", ""},
		{resets, "reset orders total --yes", 0, aliceCounter, ""},
		{resets, "refund orders total 1 --yes", 0, aliceCounter, ""},
		{bans, "ban orders per-client --key mallory --yes", 0, `"mallory" is banned`, ""},
		{bans, "unban orders per-client --key mallory --yes", 0, `"mallory" is not banned`, ""},
	} {
		stdout, stderr, code := w.run(append(strings.Fields(c.args), "--as", c.user)...)
		if code != c.code || !strings.Contains(stdout, c.stdout) || c.stderr == "" && stderr != "" || !strings.Contains(stderr, c.stderr) {
			t.Errorf("%s --as %s: exit code %d, output:\n%s%s", c.args, c.user, code, stdout, stderr)
		}
	}
	if events := w.events("orders"); len(events) != 4 || !strings.Contains(strings.Join(events, ""), ", by "+bans) {
		t.Errorf("events are %q", events)
	}
}

func TestWhatMayNotBeDoneIsSaid(t *testing.T) {
	w := newWorld(t)
	w.deployment("orders")
	p := w.policy("orders", ordersSpec)
	w.enforced(p, 3)
	answers := enforcing(1)
	answers[operator.PathReset] = operator.Changed{RedisKey: aliceCounter}
	w.pod("orders-a", answering(answers))
	w.create(w.barePod("bare"))

	look, reset := "tallyman-look", "tallyman-reset"
	for _, c := range []struct {
		role, without, args string
		code                int
		stdout, stderr      string
	}{
		{look, "ratelimitpolicies", "explain orders-a", 0, "note: where limits come from is not told: list policies: ratelimitpolicies.tallyman.dev is forbidden", ""},
		{look, "deployments", "explain orders-a", 0, "note: whether Deployment orders selects the pod is not known: deployments.apps", ""},
		{look, "namespaces", "explain bare", exitFailed, "", "why is not known without the labels of namespace"},
		{look, "pods/portforward", "explain orders-a", exitFailed, "", `pods "orders-a" is forbidden: User`},
		{look, "pods/portforward", "top --once", exitFailed, "", `pod orders-a: unable to upgrade connection: pods "orders-a" is forbidden`},
		{look, "pods/portforward", "status", 0, "note: what sidecars say is not known: ", ""},
		{look, "pods", "status", 0, "note: which pods are selected is not known: list pods", ""},
		{look, "deployments", "status", 0, "note: which pods Deployment orders selects is not known: ", ""},
		{reset, "events", "reset orders total --yes", 0, aliceCounter, "warning: it is done, but no event tells of it: events.events.k8s.io is forbidden"},
		{reset, "pods/portforward", "reset orders total --yes", exitFailed, "", `pods "orders-a" is forbidden`},
		{reset, "", "ban orders per-client --key mallory --yes", exitFailed, "", `cannot patch resource "ratelimitpolicies"`},
	} {
		user := w.user(c.role, w.ns, c.without, c.args[:3])
		stdout, stderr, code := w.run(append(strings.Fields(c.args), "--as", user)...)
		if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) {
			t.Errorf("%s without %s: exit code %d, output:\n%s%s", c.args, c.without, code, stdout, stderr)
		}
	}
}
