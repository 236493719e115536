// Package metricsdoc writes docs/metrics.md from the metrics themselves: what a
// collector gives away is what the page says.
//
// Only tests may import this package. Each package that has metrics has a test that
// compares its part of the page; go test -update writes it.
package metricsdoc

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/tallyman-dev/tallyman/internal/golden"
)

// Compare compares the part of a page with the metrics of collectors. Those that make
// their metrics at each scrape must have each of them when it is called.
func Compare(t *testing.T, page, part string, collectors ...prometheus.Collector) {
	t.Helper()
	registry, want := prometheus.NewPedanticRegistry(), map[string]bool{}
	for _, c := range collectors {
		for _, desc := range descs(c) {
			name, labels := parse(t, desc)
			want[name] = true
			makeOne(c, len(labels))
		}
		if err := registry.Register(c); err != nil {
			t.Fatal(err)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString("| metric | type | labels | what |\n| --- | --- | --- | --- |\n")
	for _, f := range families {
		delete(want, f.GetName())
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()), labelsOf(f), f.GetHelp())
	}
	for name := range want {
		t.Errorf("there is no %s to be seen, so that its type is not known", name)
	}
	golden.ComparePart(t, page, part, table.String())
}

// descs are a collector's descriptions.
func descs(c prometheus.Collector) (all []*prometheus.Desc) {
	out := make(chan *prometheus.Desc)
	go func() {
		defer close(out)
		c.Describe(out)
	}()
	for desc := range out {
		all = append(all, desc)
	}
	return all
}

// description is how a prometheus.Desc shows itself; it has no other way.
var description = regexp.MustCompile(`^Desc\{fqName: "([a-z0-9_]+)".*, variableLabels: \{(.*)\}\}$`)

func parse(t *testing.T, desc *prometheus.Desc) (name string, labels []string) {
	t.Helper()
	parts := description.FindStringSubmatch(desc.String())
	if parts == nil {
		t.Fatalf("cannot read %s", desc)
	}
	if parts[2] != "" {
		labels = strings.Split(parts[2], ",")
	}
	return parts[1], labels
}

// makeOne makes a series of a vector, which has none until something happens.
func makeOne(c prometheus.Collector, labels int) {
	values := make([]string, labels)
	switch v := c.(type) {
	case *prometheus.CounterVec:
		v.WithLabelValues(values...)
	case *prometheus.GaugeVec:
		v.WithLabelValues(values...)
	case *prometheus.HistogramVec:
		v.WithLabelValues(values...)
	}
}

func labelsOf(f *dto.MetricFamily) string {
	var names []string
	for _, label := range f.GetMetric()[0].GetLabel() {
		names = append(names, "`"+label.GetName()+"`")
	}
	return strings.Join(names, ", ")
}
