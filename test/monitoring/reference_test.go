package monitoring

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// reference is docs/metrics.md, which is made of the metrics themselves.
type reference struct {
	labels map[string][]string // by metric
	help   map[string]string   // by metric
	values string              // what the page says of labels' values
}

// ofPods are labels that Prometheus has of the pod that it scrapes.
var ofPods = []string{"namespace", "pod", "container", "instance", "job"}

var row = regexp.MustCompile("(?m)^\\| `(tallyman_[a-z_]+)` \\| ([a-z]+) \\| (.*) \\| (.*) \\|$")

func readReference(t *testing.T) *reference {
	t.Helper()
	r := &reference{labels: map[string][]string{
		// Of client_golang's collector of processes.
		"process_cpu_seconds_total": nil, "process_resident_memory_bytes": nil,
	}, help: map[string]string{}}
	page := read(t, "docs/metrics.md")
	_, rest, _ := strings.Cut(page, "The values of labels:")
	r.values, _, _ = strings.Cut(rest, "\n## ")
	for _, m := range row.FindAllStringSubmatch(page, -1) {
		name, of := m[1], regexp.MustCompile("[a-z]+").FindAllString(m[3], -1)
		if m[2] != "histogram" {
			r.labels[name], r.help[name] = of, m[4]
			continue
		}
		for _, suffix := range []string{"_sum", "_count", "_bucket"} {
			r.labels[name+suffix], r.help[name+suffix] = append(slices.Clone(of), "le"), m[4]
		}
	}
	if len(r.labels) < 20 {
		t.Fatalf("found %d metrics in the reference", len(r.labels))
	}
	return r
}

// check says what is wrong with an expression: it does not parse, or asks for a metric,
// a label or a value that there is not.
func (r *reference) check(expr string) error {
	tree, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		return err
	}
	var faults []error
	known := slices.Clone(ofPods)
	parser.Inspect(tree, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			of, exists := r.labels[selector.Name]
			if !exists {
				faults = append(faults, fmt.Errorf("there is no metric %q", selector.Name))
			}
			known = append(known, of...)
			faults = append(faults, r.checkMatchers(selector, append(slices.Clone(ofPods), of...)))
		}
		return nil
	})
	parser.Inspect(tree, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.AggregateExpr:
			faults = append(faults, checkLabels(n.Grouping, known))
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				faults = append(faults, checkLabels(n.VectorMatching.MatchingLabels, known))
			}
		}
		return nil
	})
	return errors.Join(faults...)
}

func (r *reference) checkMatchers(s *parser.VectorSelector, known []string) error {
	var faults []error
	for _, m := range s.LabelMatchers {
		if m.Name == labels.MetricName {
			continue
		}
		faults = append(faults, checkLabels([]string{m.Name}, known))
		if strings.Contains(m.Value, "$") { // a variable of a dashboard
			continue
		}
		for value := range strings.SplitSeq(m.Value, "|") {
			if !regexp.MustCompile(`\b` + regexp.QuoteMeta(value) + `\b`).MatchString(r.help[s.Name] + r.values) {
				faults = append(faults, fmt.Errorf("the reference has no value %q for %s of %s", value, m.Name, s.Name))
			}
		}
	}
	return errors.Join(faults...)
}

func checkLabels(names, known []string) error {
	for _, name := range names {
		if !slices.Contains(known, name) {
			return fmt.Errorf("there is no label %q, but %q", name, known)
		}
	}
	return nil
}

func TestFaultsOfExpressionsAreFound(t *testing.T) {
	r := readReference(t)
	for expr, fault := range map[string]string{
		`sum by (way) (rate(tallyman_requests_total{outcome="refused"}[5m]))`: "",
		`sum(`:                             "parse error",
		`tallyman_request_total`:           `no metric "tallyman_request_total"`,
		`tallyman_requests_total{door=""}`: `no label "door"`,
		`tallyman_requests_total{outcome="denied"}`: `no value "denied"`,
		`sum by (policy) (tallyman_requests_total)`: `no label "policy"`,
		`tallyman_decision_duration_seconds`:        `no metric`,
	} {
		err := r.check(expr)
		if (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Errorf("%s: %v, want %q", expr, err, fault)
		}
	}
}
