package main

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/tallyman-dev/tallyman/test/proc"
)

// manager is a manager that runs.
type manager struct {
	*process
	began   time.Time
	metrics string // URL
}

// buildManager builds the program as make build does.
func buildManager(ctx context.Context, root, dir string) (string, error) {
	program := filepath.Join(dir, "manager")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags=grpcnotrace", "-ldflags=-s -w", "-o", program, "./cmd/manager")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the manager: %w\n%s", err, out)
	}
	return program, nil
}

// startManager does not wait for it.
func (b *bench) startManager() (*manager, error) {
	health, err := proc.FreeAddress()
	if err != nil {
		return nil, err
	}
	metrics, err := proc.FreeAddress()
	if err != nil {
		return nil, err
	}
	b.managers++
	m := &manager{began: time.Now(), metrics: "http://" + metrics + "/metrics"}
	m.process, err = start(filepath.Join(b.dir, fmt.Sprintf("manager-%d.log", b.managers)), b.program,
		"--kubeconfig="+b.kubeconfig, "--store="+b.redis.url(), "--resync="+b.resync.String(),
		"--health-probe-bind-address="+health, "--metrics-bind-address="+metrics)
	return m, err
}

// read returns the manager's metrics.
func (m *manager) read(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.metrics, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(response.Body)
}

// awaitReconciles waits until the manager has reconciled so many namespaces.
func (m *manager) awaitReconciles(ctx context.Context, n int) error {
	err := m.await(ctx, func(ctx context.Context) bool {
		metrics, err := m.read(ctx) // it does not listen from the first moment on
		return err == nil && sum(metrics["controller_runtime_reconcile_time_seconds"]) >= float64(n)
	})
	if err != nil {
		return fmt.Errorf("wait for %d reconciles: %w", n, err)
	}
	return nil
}

// heap is the memory of live and dead Go objects, in MiB.
func (m *manager) heap(ctx context.Context) (float64, error) {
	metrics, err := m.read(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the manager's metrics: %w", err)
	}
	return sum(metrics["go_memstats_heap_alloc_bytes"]) / mebi, nil
}

// sum adds up the metrics of a family; of a histogram, how much it has counted.
func sum(family *dto.MetricFamily) (total float64) {
	for _, m := range family.GetMetric() {
		total += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return total
}
