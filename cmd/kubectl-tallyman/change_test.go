package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/internal/operator"
)

const aliceCounter = "tallyman:c:shop:orders:per-client:w60000000:{#2bd806c97f0e00af1a1fc3328fa763a9}"

// changing resets and refunds, and says what it was asked.
func changing(asked chan<- operator.Change) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var change operator.Change
		if err := json.NewDecoder(r.Body).Decode(&change); err != nil {
			problem(w, http.StatusBadRequest, err.Error())
			return
		}
		asked <- change
		changed := operator.Changed{RedisKey: aliceCounter, Remaining: 100}
		if r.URL.Path == operator.PathRefund {
			changed.Units, changed.Remaining = min(change.Units, 3), 3
		}
		_ = json.NewEncoder(w).Encode(changed)
	})
}

// events are those about a policy, "reason: note".
func (w *world) events(policy string) (events []string) {
	w.t.Helper()
	var list eventsv1.EventList
	if err := w.admin.List(w.t.Context(), &list, client.InNamespace(w.ns)); err != nil {
		w.t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Regarding.Kind == "RateLimitPolicy" && e.Regarding.Name == policy {
			events = append(events, e.Reason+": "+e.Note)
		}
	}
	return events
}

func TestCountersAreResetAndRefundedByAnyPod(t *testing.T) {
	w := newWorld(t)
	w.deployment("orders")
	w.policy("orders", ordersSpec)
	asked := make(chan operator.Change, 10)
	w.create(w.barePod("orders-a"))
	w.pod("orders-b", answering(nil)) // an older one
	w.pod("orders-c", changing(asked))

	stdout, stderr, code := w.run("reset", "orders", "per-client", "--key", "alice", "--yes")
	if code != 0 || stderr != "" || stdout != "the counter was reset: 100 left now\ncounter: "+aliceCounter+"\n" {
		t.Errorf("exit code %d, output:\n%s%s", code, stdout, stderr)
	}
	if diff := cmp.Diff(operator.Change{Policy: "orders", Limit: "per-client", Key: []string{"alice"}}, <-asked); diff != "" {
		t.Errorf("the sidecar was asked (-want +got):\n%s", diff)
	}
	stdout, stderr, code = w.run("refund", "orders", "per-client", "10", "--key", "alice", "--yes", "-o", "yaml")
	if code != 0 || stderr != "" || stdout != "redisKey: "+aliceCounter+"\nremaining: 3\nunits: 3\n" {
		t.Errorf("exit code %d, output:\n%s%s", code, stdout, stderr)
	}
	if change := <-asked; change.Units != 10 {
		t.Errorf("the sidecar was asked %+v", change)
	}
	want := []string{
		"CounterRefunded: Limit per-client: 3 units given back; the counter is " + aliceCounter + ", by admin",
		"CounterReset: Limit per-client: the counter was reset; the counter is " + aliceCounter + ", by admin",
	}
	got := w.events("orders")
	if diff := cmp.Diff(want, sorted(got)); diff != "" || strings.Contains(strings.Join(got, ""), "alice") {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestNothingIsChangedWithoutConfirmation(t *testing.T) {
	w := newWorld(t)
	w.deployment("orders")
	w.policy("orders", ordersSpec)
	asked := make(chan operator.Change, 10)
	w.pod("orders-a", changing(asked))
	for _, c := range []struct {
		args string
		code int
		say  string
	}{
		{"reset orders total", exitInvalid, "there is no terminal to ask for confirmation: write --yes"},
		{"reset orders total --dry-run", 0, "Reset the counter of limit total of policy orders in namespace " + w.ns + " (dry run: nothing is done)\n"},
		{"refund orders per-client 1 --key alice --dry-run", 0, `Give 1 unit back to the counter of limit per-client of policy orders in namespace ` + w.ns + ` for key ["alice"]`},
		{"reset orders per-client --yes", exitInvalid, "limit per-client counts by header X-Api-Key: write --key once, in this order"},
		{"reset orders total --key alice --yes", exitInvalid, "write no --key"},
		{"reset orders per-client --key al\xffice --yes", exitInvalid, `--key is "al\xffice", which is not UTF-8`},
		{"reset orders none --yes", exitFailed, `policy orders has no limit "none", but per-client, total`},
		{"reset none total --yes", exitFailed, `"none" not found`},
		{"refund orders total 0 --yes", exitInvalid, `UNITS is "0"`},
		{"refund orders total 1.5 --yes", exitInvalid, `UNITS is "1.5"`},
	} {
		stdout, stderr, code := w.run(strings.Fields(c.args)...)
		if code != c.code || stdout != "" || !strings.Contains(stderr, c.say) {
			t.Errorf("%s: exit code %d, want %q in:\n%s%s", c.args, code, c.say, stdout, stderr)
		}
	}
	if len(asked) > 0 || len(w.events("orders")) > 0 {
		t.Errorf("a sidecar was asked %d times, and there are events %q", len(asked), w.events("orders"))
	}
}

func TestOnlyYesConfirms(t *testing.T) {
	for answer, want := range map[string]bool{"y\n": true, "Yes\n": true, "yes": true, "n\n": false, "\n": false, "yesterday\n": false, "": false} {
		var out strings.Builder
		goOn, err := new(confirmation).confirm("Reset it", strings.NewReader(answer), &out)
		if goOn != want || (err == nil) != want || out.String() != "Reset it? [y/N] " {
			t.Errorf("%q: %v, %v, %q", answer, goOn, err, &out)
		}
	}
}

func TestARefundIsNotTriedTwiceIfItMayHaveBeenDone(t *testing.T) {
	w := newWorld(t)
	w.policy("orders", strings.Replace(ordersSpec, "targetRefs: [{kind: Deployment, name: orders}]", "selector: {}", 1))
	asked := make(chan operator.Change, 10)
	w.pod("orders-a", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	w.pod("orders-b", changing(asked))
	if stdout, stderr, code := w.run("refund", "orders", "total", "5", "--yes"); code != exitFailed || stdout != "" || !strings.Contains(stderr, "pod orders-a: ") {
		t.Errorf("exit code %d, output:\n%s%s", code, stdout, stderr)
	}
	if len(asked) > 0 {
		t.Error("another pod was asked, too")
	}
}

func TestPartsOfALimitAreResetInAllPods(t *testing.T) {
	w := newWorld(t)
	w.policy("orders", `{selector: {}, limits: [{name: total, requests: 9, window: 1m, distribution: {mode: Split}}]}`)
	asked := make(chan operator.Change, 10)
	for _, pod := range []string{"orders-a", "orders-b"} {
		w.pod(pod, changing(asked))
	}
	stdout, stderr, code := w.run("reset", "orders", "total", "--yes")
	if code != 0 || !strings.HasPrefix(stdout, "the counter was reset: 200 left now\n") || len(asked) != 2 {
		t.Errorf("exit code %d, output:\n%s%s", code, stdout, stderr)
	}
	stdout, stderr, code = w.run("refund", "orders", "total", "2", "--yes")
	if code != 0 || len(asked) != 3 {
		t.Errorf("exit code %d, output:\n%s%s", code, stdout, stderr)
	}
	w.create(w.barePod("orders-c"))
	stdout, stderr, code = w.run("reset", "orders", "total", "--yes")
	if code != exitFailed || stdout != "" || !strings.Contains(stderr, "done in 2 of 3 pods, and not in all: pod orders-c: it has no sidecar") {
		t.Errorf("exit code %d, output:\n%s%s", code, stdout, stderr)
	}
}

func TestCountersOutsideOfAClusterAreReset(t *testing.T) {
	asked := make(chan operator.Change, 1)
	stdout, stderr, code := run(t, "", "reset", "orders", "total", "--yes", "--sidecar", "http://"+serve(t, changing(asked)))
	if code != 0 || stderr != "" || !strings.HasPrefix(stdout, "the counter was reset: 100 left now\n") {
		t.Errorf("exit code %d, output:\n%s%s", code, stdout, stderr)
	}
}
