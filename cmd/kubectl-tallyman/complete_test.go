package main

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"
)

// complete is what a shell proposes for the last of the words.
func (w *world) complete(words ...string) (proposed []string) {
	w.t.Helper()
	args := append([]string{"__complete", words[0], "--kubeconfig", w.kubeconfig, "--namespace", w.ns}, words[1:]...)
	stdout, stderr, code := run(w.t, "", args...)
	if code != 0 {
		w.t.Fatalf("%q: exit code %d: %s", words, code, stderr)
	}
	for line := range strings.Lines(stdout) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, ":") {
			break // the directive is last
		}
		value, _, _ := strings.Cut(line, "\t") // a description follows
		proposed = append(proposed, value)
	}
	return proposed
}

func TestArgumentsAreCompletedFromTheCluster(t *testing.T) {
	w := newWorld(t)
	w.policy("orders", ordersSpec)
	w.policy("other", `{selector: {}, limits: [{name: all, requests: 1, window: 1m}]}`)
	w.deployment("orders")
	w.pod("orders-a", answering(nil))
	w.create(w.barePod("orders-b"))
	w.create(&appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "carts"},
		Spec:       appsv1.StatefulSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}, Template: templateOf(map[string]string{"a": "b"})},
	})
	for words, want := range map[string]string{
		"explain ^":         "orders-a daemonset/ deployment/ service/ statefulset/",
		"explain o^":        "orders-a",
		"explain d^":        "daemonset/ deployment/",
		"explain deploy/^":  "deploy/orders",
		"explain sts/^":     "sts/carts",
		"explain a ^":       "",
		"top ^":             "orders other",
		"status or^":        "orders",
		"reset ^":           "orders other",
		"reset orders ^":    "per-client total",
		"refund orders t^":  "total",
		"ban orders p^":     "per-client",
		"ban none ^":        "--key",
		"unban other ^":     "--key all",
		"top --by ^":        "key limit",
		"status --output ^": "table json yaml",
		"status --system-namespace " + w.ns[:8] + "^": w.ns,
	} {
		got := w.complete(strings.Split(strings.TrimSuffix(words, "^"), " ")...)
		if diff := cmp.Diff(strings.Fields(want), got); diff != "" && len(got)+len(want) > 0 {
			t.Errorf("%q (-want +got):\n%s", words, diff)
		}
	}
}

func TestNothingIsProposedWithoutACluster(t *testing.T) {
	stdout, _, code := run(t, "", "__complete", "top", "--kubeconfig", "/does/not/exist", "")
	if code != 0 || !strings.HasPrefix(stdout, ":4\n") {
		t.Errorf("exit code %d, output:\n%s", code, stdout)
	}
}

func TestShellsAreGivenCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if stdout, stderr, code := run(t, "", "completion", shell); code != 0 || !strings.Contains(stdout, "kubectl-tallyman") {
			t.Errorf("%s: exit code %d: %s", shell, code, stderr)
		}
	}
}
