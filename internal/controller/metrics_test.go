package controller

import (
	"context"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/internal/metricsdoc"
)

// nothing is a store that answers and a cluster without policies.
type nothing struct {
	Store
	client.Reader
}

func (nothing) Ping(context.Context) error { return nil }

func (nothing) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

func TestMetricsReference(t *testing.T) {
	metricsdoc.Compare(t, "../../docs/metrics.md", "manager", newMetrics().collectors(nothing{}, nothing{})...)
}
