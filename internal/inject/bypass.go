package inject

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Bypass tells of a Service that leads past a pod's sidecar: it selects the pod and
// has the number of the app's port, which has not changed. It is empty for all
// other Services, and for a pod without a sidecar that was injected.
func Bypass(pod *corev1.Pod, s *corev1.Service) string {
	name, port := proxied(pod)
	if port == 0 || len(s.Spec.Selector) == 0 || !labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(pod.Labels)) {
		return ""
	}
	for _, p := range s.Spec.Ports {
		target := p.TargetPort
		if target == (intstr.IntOrString{}) {
			target = intstr.FromInt32(p.Port) // the API server's default
		}
		if target == intstr.FromInt32(port) && cmp.Or(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP {
			return fmt.Sprintf("Service %s leads past the Tallyman sidecar: port %d has targetPort %d, a number; write targetPort: %s, the port's name",
				s.Name, p.Port, port, name)
		}
	}
	return ""
}

// proxied is the port of the app that a pod's sidecar stands before, and the name
// that it has taken over; 0 without such a sidecar.
func proxied(pod *corev1.Pod) (name string, port int32) {
	c := sidecarOf(pod)
	if c == nil || len(c.Ports) == 0 {
		return "", 0
	}
	value, _ := valueOf(c, upstreamFlag)
	number, _ := strconv.ParseInt(value, 10, 32)
	return c.Ports[0].Name, int32(number)
}

// Outline is as much of a pod's sidecar as this package looks at, but for its operator
// API: as a pod's init containers it stands for all of its containers. It is empty
// without a sidecar.
func Outline(pod *corev1.Pod) []corev1.Container {
	c := sidecarOf(pod)
	if c == nil {
		return nil
	}
	outline := corev1.Container{Name: Container, Ports: slices.Clone(c.Ports[:min(1, len(c.Ports))])}
	if port, found := valueOf(c, upstreamFlag); found {
		outline.Args = []string{upstreamFlag + port}
	}
	return []corev1.Container{outline}
}
