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

// metrics are what the manager counts, besides what controller-runtime does.
type metrics struct {
	storeUp   prometheus.Gauge
	publishes *prometheus.CounterVec
}

func newMetrics() *metrics {
	return &metrics{
		storeUp: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tallyman_store_up",
			Help: "Whether the store answered the last time it was asked: 1 or 0.",
		}),
		publishes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tallyman_publishes_total",
			Help: "Publishes of a namespace's policies, by result: changed, unchanged or error.",
		}, []string{"result"}),
	}
}

func (m *metrics) storeAnswered(err error) {
	if err != nil {
		m.storeUp.Set(0)
		return
	}
	m.storeUp.Set(1)
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
	"Policies by condition and its status.", []string{"condition", "status"}, nil)

// Describe implements prometheus.Collector.
func (conditionCollector) Describe(descs chan<- *prometheus.Desc) { descs <- conditionsDesc }

// Collect implements prometheus.Collector. A cache that is not ready yet has
// nothing to tell.
func (c conditionCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var list v1alpha1.RateLimitPolicyList
	if c.reader.List(ctx, &list) != nil {
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
