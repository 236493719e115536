package controller

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
)

// askTimeout bounds what a scrape waits for, far below Prometheus's own 10 s.
const askTimeout = time.Second

// metrics are what the manager counts, besides what controller-runtime does.
type metrics struct {
	publishes *prometheus.CounterVec
}

func newMetrics() *metrics {
	return &metrics{
		publishes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tallyman_publishes_total",
			Help: "Publishes of a namespace's policies, by result: changed, unchanged or error.",
		}, []string{"result"}),
	}
}

// collectors are all metrics of the controller.
func (m *metrics) collectors(store Store, reader client.Reader) []prometheus.Collector {
	return []prometheus.Collector{m.publishes, storeUp(store), conditionCollector{reader}}
}

// storeUp asks the store at each scrape, so that it is true also of a manager
// that is not the leader, and of one with nothing to publish.
func storeUp(store Store) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tallyman_store_up",
		Help: "Whether the store answers this manager: 1 or 0.",
	}, func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
		defer cancel()
		if store.Ping(ctx) != nil {
			return 0
		}
		return 1
	})
}

func (m *metrics) published(changed bool, err error) {
	result := "unchanged"
	switch {
	case err != nil:
		result = "error"
	case changed:
		result = "changed"
	}
	m.publishes.WithLabelValues(result).Inc()
}

// conditionCollector counts policies by their conditions, as the cache has them
// at the time of a scrape.
type conditionCollector struct{ reader client.Reader }

var conditionsDesc = prometheus.NewDesc("tallyman_policies",
	"Policies by condition, Accepted, Programmed or Enforced, and its status: True, False or Unknown.", []string{"condition", "status"}, nil)

// Describe implements prometheus.Collector.
func (conditionCollector) Describe(descs chan<- *prometheus.Desc) { descs <- conditionsDesc }

// Collect implements prometheus.Collector. A cache that is not ready yet has
// nothing to tell.
func (c conditionCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	var list v1alpha1.RateLimitPolicyList
	if c.reader.List(ctx, &list, client.UnsafeDisableDeepCopy) != nil {
		return
	}
	for _, condition := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionProgrammed, v1alpha1.ConditionEnforced} {
		counts := map[metav1.ConditionStatus]int{metav1.ConditionTrue: 0, metav1.ConditionFalse: 0, metav1.ConditionUnknown: 0}
		for i := range list.Items {
			if found := meta.FindStatusCondition(list.Items[i].Status.Conditions, condition); found != nil {
				counts[found.Status]++
			}
		}
		for status, n := range counts {
			out <- prometheus.MustNewConstMetric(conditionsDesc, prometheus.GaugeValue, float64(n), condition, string(status))
		}
	}
}
