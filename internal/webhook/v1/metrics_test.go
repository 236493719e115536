package v1

import (
	"testing"

	"github.com/tallyman-dev/tallyman/internal/metricsdoc"
)

func TestMetricsReference(t *testing.T) {
	metricsdoc.Compare(t, "../../../docs/metrics.md", "injection", newPods())
}
