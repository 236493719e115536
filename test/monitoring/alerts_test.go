package monitoring

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const rulesFile = "config/components/monitoring/prometheus_rule.yaml"

// rules is a PrometheusRule.
type rules struct {
	Spec struct {
		Groups []struct {
			Name  string
			Rules []alert
		}
	}
}

type alert struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	var r rules
	if err := yaml.Unmarshal([]byte(read(t, rulesFile)), &r); err != nil {
		t.Fatal(err)
	}
	for _, g := range r.Spec.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("there are no alerts")
	}
	return all
}

// writeRules writes the alerts as a file that Prometheus reads.
func writeRules(t *testing.T, dir string) {
	t.Helper()
	var object struct{ Spec any }
	if err := yaml.Unmarshal([]byte(read(t, rulesFile)), &object); err != nil {
		t.Fatal(err)
	}
	file, err := yaml.Marshal(object.Spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "alerts.yaml"), file, 0o600); err != nil {
		t.Fatal(err)
	}
}

// program is the path of Prometheus's programs, which are beside the one that the
// environment variable PROMETHEUS_BINARY names, or in PATH.
func program(name string) string {
	if binary := os.Getenv("PROMETHEUS_BINARY"); binary != "" {
		return filepath.Join(filepath.Dir(binary), name)
	}
	return name
}

func TestAlertsAskForMetricsThatThereAre(t *testing.T) {
	r := readReference(t)
	for _, a := range alerts(t) {
		if err := r.check(a.Expr); err != nil {
			t.Errorf("%s: %v", a.Alert, err)
		}
		for name, text := range a.Annotations {
			for _, label := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(text, -1) {
				if !strings.Contains(a.Expr, label[1]) {
					t.Errorf("%s: %s names the label %s, which the expression does not keep", a.Alert, name, label[1])
				}
			}
		}
	}
}

// Who is paged finds what to do: each alert has a part of the runbook, and each part
// of the runbook an alert.
func TestEachAlertHasARunbook(t *testing.T) {
	var headings []string
	for _, m := range regexp.MustCompile(`(?m)^## (Tallyman\w+)$`).FindAllStringSubmatch(read(t, "docs/runbooks.md"), -1) {
		headings = append(headings, m[1])
	}
	var names []string
	for _, a := range alerts(t) {
		names = append(names, a.Alert)
		if want := "https://github.com/tallyman-dev/tallyman/blob/main/docs/runbooks.md#" + strings.ToLower(a.Alert); a.Annotations["runbook_url"] != want {
			t.Errorf("%s: the runbook is at %s, want %s", a.Alert, a.Annotations["runbook_url"], want)
		}
		if !slices.Contains([]string{"critical", "warning"}, a.Labels["severity"]) || a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("%s lacks a severity, a summary or a description", a.Alert)
		}
	}
	slices.Sort(headings)
	slices.Sort(names)
	if !slices.Equal(headings, names) {
		t.Errorf("the runbook has\n%q, and the alerts are\n%q", headings, names)
	}
}

// The alerts fire when they should and not otherwise, as promtool works it out.
func TestAlertsFire(t *testing.T) {
	const unitTests = "alerts_test.yaml"
	text, err := os.ReadFile(filepath.Join("testdata", unitTests))
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range alerts(t) {
		if !strings.Contains(string(text), `alertname="`+a.Alert+`"`) {
			t.Errorf("%s has no test", a.Alert)
		}
	}
	dir := t.TempDir()
	writeRules(t, dir)
	if err := os.WriteFile(filepath.Join(dir, unitTests), text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", unitTests}} {
		promtool := exec.CommandContext(t.Context(), program("promtool"), args...)
		promtool.Dir = dir
		if out, err := promtool.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
