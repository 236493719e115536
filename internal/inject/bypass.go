package inject

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// upstreamFlag tells the sidecar where the app is.
const upstreamFlag = "--upstream=http://127.0.0.1:"

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
	for _, c := range Outline(pod) {
		if len(c.Args) == 1 && len(c.Ports) == 1 {
			number, _ := strconv.ParseInt(strings.TrimPrefix(c.Args[0], upstreamFlag), 10, 32)
			return c.Ports[0].Name, int32(number)
		}
	}
	return "", 0
}

// Outline is as much of a pod's sidecar as this package looks at: as a pod's init
// containers it stands for all of its containers. It is empty without a sidecar.
func Outline(pod *corev1.Pod) []corev1.Container {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name != Container {
			continue
		}
		outline := corev1.Container{Name: Container, Ports: slices.Clone(c.Ports[:min(1, len(c.Ports))])}
		for _, arg := range c.Args {
			if strings.HasPrefix(arg, upstreamFlag) {
				outline.Args = []string{arg}
			}
		}
		return []corev1.Container{outline}
	}
	return nil
}
