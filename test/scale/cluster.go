package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/inject"
)

// podLabels are those of all pods. All policies of a namespace select all of its
// pods, the most that a pod can have to do.
var podLabels = map[string]string{"app": "shop"}

func namespaceName(i int) string { return fmt.Sprintf("team-%03d", i) }
func policyName(i int) string    { return fmt.Sprintf("orders-%05d", i) }
func podName(i int) string       { return fmt.Sprintf("shop-7c5ddbdf54-%05d", i) }

// writers is how many objects are written at a time.
const writers = 16

// each calls do with 0..n-1, some at a time.
func each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// createNamespaces creates the namespaces with their pods, which run, and policies.
func (b *bench) createNamespaces(ctx context.Context, names []string, pods, policies int) error {
	return each(ctx, len(names), func(ctx context.Context, i int) error {
		ns := names[i]
		if err := b.api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); err != nil {
			return err
		}
		for i := range pods {
			if err := b.createPod(ctx, ns, podName(i)); err != nil {
				return err
			}
		}
		for i := range policies {
			if err := b.createPolicy(ctx, ns, policyName(i)); err != nil {
				return err
			}
		}
		return nil
	})
}

// createPod creates a pod with a sidecar. Nobody runs it; that it runs is said by us.
func (b *bench) createPod(ctx context.Context, ns, name string) error {
	always := corev1.ContainerRestartPolicyAlways
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: podLabels},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: inject.Container, Image: "tallyman/sidecar:dev", RestartPolicy: &always}},
			Containers:     []corev1.Container{{Name: "app", Image: "example.com/shop"}},
		},
	}
	if err := b.api.Create(ctx, pod); err != nil {
		return err
	}
	pod.Status.Phase = corev1.PodRunning
	return b.api.Status().Update(ctx, pod)
}

// createPolicy creates a policy as kubectl apply does, with its own text in an
// annotation.
func (b *bench) createPolicy(ctx context.Context, ns, name string) error {
	policy := newPolicy(ns, name)
	text, err := json.Marshal(policy)
	if err != nil {
		return err
	}
	policy.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: string(text)}
	return b.api.Create(ctx, policy)
}

// newPolicy has two limits: one by client for some requests, one for all.
func newPolicy(ns, name string) *v1alpha1.RateLimitPolicy {
	limit := func(n int64) *int64 { return &n }
	return &v1alpha1.RateLimitPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "RateLimitPolicy"},
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: v1alpha1.RateLimitPolicySpec{
			Selector: &metav1.LabelSelector{MatchLabels: podLabels},
			Limits: []v1alpha1.Limit{{
				Name: "per-client", Requests: limit(100), Window: "1m", Algorithm: "TokenBucket", Burst: limit(150),
				Match: []v1alpha1.Match{{
					Methods: []v1alpha1.Method{"POST", "PUT"},
					Path:    &v1alpha1.PathMatch{Type: "Prefix", Value: "/v1/" + name},
				}},
				Key: []v1alpha1.KeyPart{{Header: &v1alpha1.HeaderKey{Name: "X-Api-Key"}}},
			}, {
				Name: "total", Requests: limit(10_000), Window: "1m",
			}},
		},
	}
}

// apiWrites counts the requests to write something that the API server has had, by
// what they were, such as "PATCH ratelimitpolicies/status". Leases are left out: the
// API server renews one of its own.
func apiWrites(ctx context.Context, config *rest.Config) (map[string]float64, error) {
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	text, err := clientset.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	metrics, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	return writesIn(metrics["apiserver_request_total"]), nil
}

func writesIn(requests *dto.MetricFamily) map[string]float64 {
	writes := map[string]float64{}
	for _, m := range requests.GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		switch labels["verb"] {
		case "GET", "LIST", "WATCH", "WATCHLIST", "CONNECT":
			continue
		}
		if labels["resource"] == "leases" {
			continue
		}
		what := labels["verb"] + " " + labels["resource"]
		if labels["subresource"] != "" {
			what += "/" + labels["subresource"]
		}
		writes[what] += m.GetCounter().GetValue()
	}
	return writes
}
