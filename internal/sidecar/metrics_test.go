package sidecar

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tallyman-dev/tallyman/internal/metricsdoc"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

func TestMetricsReference(t *testing.T) {
	all := append(new(metrics).collectors(), loadedAt(time.Now),
		prometheus.Collector(leaseCollector{func() []tallyman.LeaseState { return []tallyman.LeaseState{{}} }}))
	metricsdoc.Compare(t, "../../docs/metrics.md", "sidecar", all...)
}
