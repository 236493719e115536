package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/internal/inject"
	"github.com/tallyman-dev/tallyman/internal/reach"
	"github.com/tallyman-dev/tallyman/internal/target"
)

// pageSize is how many objects are listed at a time.
const pageSize = 500

// kindNames are the kinds of workloads, as kubectl lets them be written.
var kindNames = map[string]string{
	"deployment": "Deployment", "deployments": "Deployment", "deploy": "Deployment", "deployment.apps": "Deployment",
	"statefulset": "StatefulSet", "statefulsets": "StatefulSet", "sts": "StatefulSet", "statefulset.apps": "StatefulSet",
	"daemonset": "DaemonSet", "daemonsets": "DaemonSet", "ds": "DaemonSet", "daemonset.apps": "DaemonSet",
	"service": "Service", "services": "Service", "svc": "Service",
	"pod": podKind, "pods": podKind, "po": podKind,
}

const podKind = "Pod"

// parseWorkload reads NAME of a pod, or KIND/NAME.
func parseWorkload(arg string) (kind, name string, err error) {
	kind, name, both := strings.Cut(arg, "/")
	if !both {
		kind, name = podKind, arg
	} else if known, ok := kindNames[strings.ToLower(kind)]; ok {
		kind = known
	} else {
		return "", "", fmt.Errorf("%q is of no kind that has sidecars: write the name of a pod, or deployment/, statefulset/, daemonset/ or service/ and a name", arg)
	}
	if name == "" {
		return "", "", fmt.Errorf("%q has no name", arg)
	}
	return kind, name, nil
}

// podsOf are the pods of a workload, or the one pod.
func (c *cluster) podsOf(ctx context.Context, kind, name string) ([]corev1.Pod, error) {
	if kind == podKind {
		var pod corev1.Pod
		err := c.get(ctx, name, "pod", &pod)
		if apierrors.IsNotFound(err) {
			err = failure{fmt.Errorf("%w (of a workload, write its kind as well, such as deployment/%s)", err, name)}
		}
		return []corev1.Pod{pod}, err
	}
	object := target.Kinds[kind]()
	if err := c.get(ctx, name, strings.ToLower(kind), object); err != nil {
		return nil, err
	}
	selector := target.PodSelector(object)
	if selector == nil {
		return nil, failure{fmt.Errorf("%s %s of namespace %s selects no pods", strings.ToLower(kind), name, c.namespace)}
	}
	pods, err := c.pods(ctx, c.namespace)
	if err != nil {
		return nil, err
	}
	pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !selector.Matches(p.Labels) })
	if len(pods) == 0 {
		return nil, failure{fmt.Errorf("%s %s of namespace %s has no live pod", strings.ToLower(kind), name, c.namespace)}
	}
	return pods, nil
}

// pods are the live ones of a namespace, or with an empty one of all, by name.
func (c *cluster) pods(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	var page corev1.PodList
	for {
		err := c.List(ctx, &page, client.InNamespace(namespace), client.Limit(pageSize), client.Continue(page.Continue))
		if err != nil {
			return nil, failure{fmt.Errorf("list pods: %w", err)}
		}
		for i := range page.Items {
			if target.IsLive(&page.Items[i]) {
				pods = append(pods, page.Items[i])
			}
		}
		if page.Continue == "" {
			break
		}
	}
	slices.SortFunc(pods, func(a, b corev1.Pod) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return pods, nil
}

// sidecar is a client for a pod's sidecar. The error says why there is none to ask,
// and what to do.
func (c *cluster) sidecar(ctx context.Context, pod *corev1.Pod) (*reach.Client, error) {
	if !inject.HasSidecar(pod) {
		return nil, errors.New("it has no sidecar: " + c.whyMissing(ctx, pod))
	}
	port, err := inject.OperatorPort(pod)
	if err != nil {
		return nil, err
	}
	if !inject.HasStarted(pod) {
		return nil, errors.New(cmp.Or(inject.WhyNotReady(pod), "its sidecar has not started yet"))
	}
	return c.forward.Client(pod.Namespace, pod.Name, port)
}

func (c *cluster) whyMissing(ctx context.Context, pod *corev1.Pod) string {
	var namespace corev1.Namespace
	if err := c.Get(ctx, client.ObjectKey{Name: pod.Namespace}, &namespace); err != nil && pod.Annotations[inject.ReasonAnnotation] == "" {
		return fmt.Sprintf("why is not known without the labels of namespace %s: %v", pod.Namespace, err)
	}
	return inject.WhyMissing(pod, namespace.Labels)
}

// anySidecar is the first of the pods whose sidecar can be asked. The error is why
// that of the first pod cannot.
func (c *cluster) anySidecar(ctx context.Context, pods []corev1.Pod) (*corev1.Pod, *reach.Client, error) {
	var first error
	for i := range pods {
		sidecar, err := c.sidecar(ctx, &pods[i])
		if err == nil {
			return &pods[i], sidecar, nil
		}
		if first == nil {
			first = failure{fmt.Errorf("pod %s: %w", pods[i].Name, err)}
		}
	}
	return nil, nil, first
}
