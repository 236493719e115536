package inject

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Flags of the sidecar that are read from pods again.
const (
	upstreamFlag = "--upstream=http://127.0.0.1:"
	operatorFlag = "--operator-listen="
)

// sidecarOf is the container of the sidecar's name, wherever it is from; nil if the pod
// has none.
func sidecarOf(pod *corev1.Pod) *corev1.Container {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			if containers[i].Name == Container {
				return &containers[i]
			}
		}
	}
	return nil
}

// valueOf is the rest of the argument that begins with a flag; of several, the last
// one counts.
func valueOf(c *corev1.Container, flag string) (value string, found bool) {
	for _, arg := range slices.Backward(c.Args) {
		if value, found = strings.CutPrefix(arg, flag); found {
			return value, true
		}
	}
	return "", false
}

// HasSidecar says whether the pod has a container of the sidecar's name, wherever
// it is from.
func HasSidecar(pod *corev1.Pod) bool { return sidecarOf(pod) != nil }

// HasStarted says whether the pod's sidecar has read the policies.
func HasStarted(pod *corev1.Pod) bool {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if s.Name == Container {
			return s.State.Running != nil && s.Started != nil && *s.Started
		}
	}
	return false
}

// OperatorPort is where a pod's sidecar serves its operator API, at a loopback address.
// The error says why that cannot be told, and what to do.
func OperatorPort(pod *corev1.Pod) (int32, error) {
	c := sidecarOf(pod)
	if c == nil {
		return 0, fmt.Errorf("it has no container %s", Container)
	}
	address, found := valueOf(c, operatorFlag)
	if !found {
		return 0, fmt.Errorf("its sidecar has no %s127.0.0.1:PORT: it is of an older version, and a new pod has a newer one "+
			"(kubectl rollout restart)", operatorFlag)
	}
	listen, err := netip.ParseAddrPort(address)
	if err != nil || !listen.Addr().IsLoopback() || listen.Port() == 0 {
		return 0, fmt.Errorf("its sidecar has %.60q, which is no address and port of 127.0.0.1", operatorFlag+address)
	}
	return int32(listen.Port()), nil
}
