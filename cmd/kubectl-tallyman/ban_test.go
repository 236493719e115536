package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
)

// overrides are those of a policy's first limit, in short.
func (w *world) overrides(p *v1alpha1.RateLimitPolicy) string {
	w.t.Helper()
	if err := w.admin.Get(w.t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
		w.t.Fatal(err)
	}
	var all []string
	for _, o := range p.Spec.Limits[0].Overrides {
		all = append(all, fmt.Sprintf("%v %s", o.Keys, o.Action))
	}
	return strings.Join(all, ", ")
}

func TestAKeyIsBannedAndUnbanned(t *testing.T) {
	w := newWorld(t)
	p := w.policy("orders", ordersSpec)
	for _, c := range []struct{ args, stdout, overrides string }{
		{"ban --key mallory", `"mallory" is banned by limit per-client of policy orders`, "[mallory] Deny"},
		{"ban --key mallory", `"mallory" is banned by limit per-client of policy orders, and was so before`, "[mallory] Deny"},
		{"ban --key eve", `"eve" is banned by limit per-client of policy orders`, "[mallory eve] Deny"},
		{"ban --key dan --dry-run", "", "[mallory eve] Deny"},
		{"unban --key mallory", `"mallory" is not banned by limit per-client of policy orders`, "[eve] Deny"},
		{"unban --key alice", `"alice" is not banned by limit per-client of policy orders, and was so before`, "[eve] Deny"},
		{"unban --key eve", `"eve" is not banned by limit per-client of policy orders`, ""},
	} {
		command, flags, _ := strings.Cut(c.args, " ")
		args := append([]string{command, "orders", "per-client", "--yes"}, strings.Fields(flags)...)
		stdout, stderr, code := w.run(args...)
		// The test has created it, by a client that is none of kubectl's.
		stdout, _, _ = strings.Cut(stdout, "\nnote: policy orders is written by kubectl-tallyman.test, too")
		if strings.TrimSpace(stdout) != c.stdout || code != 0 || stderr != "" && !strings.Contains(args[len(args)-1], "--dry-run") {
			t.Errorf("%s: exit code %d, output:\n%s%s", c.args, code, stdout, stderr)
		}
		if got := w.overrides(p); got != c.overrides {
			t.Errorf("%s: overrides are %s, want %s", c.args, got, c.overrides)
		}
	}
	want := []string{
		"KeyBanned: Limit per-client: a key was banned, by admin",
		"KeyBanned: Limit per-client: a key was banned, by admin",
		"KeyUnbanned: Limit per-client: the ban of a key was ended, by admin",
		"KeyUnbanned: Limit per-client: the ban of a key was ended, by admin",
	}
	if diff := cmp.Diff(want, sorted(w.events("orders"))); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestBansAtTheSameTimeAreAllThere(t *testing.T) {
	w := newWorld(t)
	p := w.policy("orders", ordersSpec)
	var all sync.WaitGroup
	const people = 16
	for i := range people {
		all.Go(func() {
			if _, stderr, code := w.run("ban", "orders", "per-client", "--yes", "--key", fmt.Sprintf("key-%d", i)); code != 0 {
				t.Errorf("exit code %d: %s", code, stderr)
			}
		})
	}
	all.Wait()
	got := w.overrides(p)
	for i := range people {
		if key := fmt.Sprintf("key-%d", i); !strings.Contains(got, key) {
			t.Errorf("overrides are %s, without %s", got, key)
		}
	}
}

func TestWhatCannotBeBannedIsSaid(t *testing.T) {
	w := newWorld(t)
	w.policy("orders", ordersSpec)
	for _, c := range []struct {
		args string
		code int
		say  string
	}{
		{"ban orders per-client --yes", exitInvalid, `required flag(s) "key"`},
		{"ban orders per-client --key a", exitInvalid, "write --yes"},
		{"ban orders total --key a --yes", exitInvalid, "one counter for all and no key"},
		{"ban orders per-client --key a\xff --yes", exitInvalid, `--key is "a\xff", which is not UTF-8`},
		{"ban orders per-client --key a --key b --yes", exitInvalid, "--key is there 2 times"},
		{"ban orders none --key a --yes", exitFailed, "but per-client, total"},
		{"ban none total --key a --yes", exitFailed, "not found"},
		{"ban orders per-client --key a --dry-run", 0, `Ban "a" from limit per-client of policy orders in namespace ` + w.ns +
			` (whoever reads the policy will see this value of header X-Api-Key) (dry run: nothing is done)`},
	} {
		stdout, stderr, code := w.run(strings.Fields(c.args)...)
		if code != c.code || stdout != "" || !strings.Contains(stderr, c.say) {
			t.Errorf("%s: exit code %d, want %q in:\n%s%s", c.args, code, c.say, stdout, stderr)
		}
	}
}

func TestBanTellsWhoMayUndoIt(t *testing.T) {
	w := newWorld(t)
	manifest := filepath.Join(t.TempDir(), "policy.yaml")
	text := strings.Replace(policyText, "{name: orders}", "{name: orders, namespace: "+w.ns+"}", 1)
	if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	apply := exec.CommandContext(t.Context(), w.Kubectl, "--kubeconfig", w.kubeconfig, "apply", "--server-side",
		"--field-manager", "argocd-controller", "-f", manifest)
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	stdout, stderr, code := w.run("ban", "orders", "per-client", "--key", "mallory", "--yes", "-o", "json")
	var b banned
	if err := json.Unmarshal([]byte(stdout), &b); err != nil || code != 0 || !b.Banned || !b.Changed {
		t.Fatalf("exit code %d, %v: %s%s", code, err, stdout, stderr)
	}
	want := []string{"policy orders is written by argocd-controller, too, which may undo this: change it where the policy is from"}
	if diff := cmp.Diff(want, b.Notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}
