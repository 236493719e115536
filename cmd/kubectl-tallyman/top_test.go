package main

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/operator"
	"github.com/tallyman-dev/tallyman/internal/view"
)

// counting is a sidecar that has refused two requests of a key and admitted one in
// each second since the question before.
func counting() http.Handler {
	var asked atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := asked.Add(1) - 1
		key := operator.TopKey{Key: "#2bd806c97f0e00af", Admitted: n, Refused: 2 * n}
		if r.URL.Query().Get("reveal") == "true" {
			key.Key = "alice"
		}
		_ = json.NewEncoder(w).Encode(operator.Top{SinceMs: 1000 * n, Limits: []operator.TopLimit{
			{Policy: "orders", Limit: "per-client", Admitted: key.Admitted, Refused: key.Refused, Keys: []operator.TopKey{key}},
			{Policy: "other", Limit: "total", Admitted: n},
		}})
	})
}

func TestTopSumsWhatSidecarsCount(t *testing.T) {
	w := newWorld(t)
	w.create(w.barePod("bare"))
	w.pod("orders-a", counting())
	w.pod("orders-b", counting())
	w.pod("orders-c", answering(nil))

	stdout, stderr, code := w.run("top", "orders", "--once", "--interval", "500ms")
	_, stdout, _ = strings.Cut(stdout, "  ") // after the time
	const want = `2 sidecars answered; keys with # are hashes: --reveal shows their values
no answer: orders-c: there is no such path

POLICY  LIMIT       KEY                REFUSED/S  ADMITTED/S
orders  per-client  #2bd806c97f0e00af  4.0        2.0
`
	if code != 0 || stdout != want || stderr != "" {
		t.Errorf("exit code %d, output:\n%s%s", code, stdout, stderr)
	}
	stdout, stderr, code = w.run("top", "-A", "--by", "limit", "--reveal", "--once", "--interval", "500ms", "-o", "json")
	var rates view.Rates
	if err := json.Unmarshal([]byte(stdout), &rates); err != nil || code != 0 || strings.Count(stdout, "\n") != 1 {
		t.Fatalf("exit code %d, %v: %s%s", code, err, stdout, stderr)
	}
	for _, l := range rates.Limits {
		if l.Namespace == w.ns && l.Policy == "orders" && (l.Refused != 4 || l.Keys[0].Key != "alice") {
			t.Errorf("rates are %+v", l)
		}
	}
}

func TestTopGoesOnUntilItIsInterrupted(t *testing.T) {
	c, stdout, stderr := program(t.Context(), "top", "--sidecar", "http://"+serve(t, counting()), "--interval", "500ms", "-o", "json")
	c.Stdout = nil
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := json.NewDecoder(out)
	for range 2 {
		var rates view.Rates
		if err := lines.Decode(&rates); err != nil || rates.Limits[0].Refused != 2 {
			t.Fatalf("%v: %+v\n%s%s", err, rates, stdout, stderr)
		}
	}
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil || stderr.String() != "" {
		t.Errorf("%v: %s", err, stderr)
	}
}

func TestTopSaysWhyNothingIsShown(t *testing.T) {
	w := newWorld(t)
	if stdout, stderr, code := w.run("top"); code != exitFailed || stdout != "" || !strings.Contains(stderr, "no pod of namespace "+w.ns+" has a sidecar") {
		t.Errorf("exit code %d, output:\n%s%s", code, stdout, stderr)
	}
	w.pod("orders-a", answering(nil))
	if _, stderr, code := w.run("top"); code != exitFailed || !strings.Contains(stderr, "none of 1 sidecar answered: pod orders-a: there is no such path") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

func TestWhatIsNotValidOfTopIsSaidWithExitCode2(t *testing.T) {
	for args, want := range map[string]string{
		"--by client":                           "write limit or key",
		"--interval 1ms":                        "500ms to 10s",
		"--interval 1m":                         "500ms to 10s",
		"a b":                                   "at most 1 arg",
		"-A --sidecar http://127.0.0.1:1":       "does not go with --all-namespaces",
		"--sidecar http://user@127.0.0.1:12082": "is no URL",
	} {
		if _, stderr, code := run(t, "", append([]string{"top"}, strings.Fields(args)...)...); code != exitInvalid || !strings.Contains(stderr, want) {
			t.Errorf("%q: exit code %d, want %q in: %s", args, code, want, stderr)
		}
	}
}
