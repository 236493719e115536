package inject

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWhyAPodHasNoSidecar(t *testing.T) {
	for name, c := range map[string]struct {
		labels, annotations, namespace map[string]string
		want                           string
	}{
		"forgotten label":      {want: "nothing asks for one: label its namespace tallyman.dev/injection=enabled, and restart"},
		"another value":        {namespace: map[string]string{NamespaceLabel: "true"}, want: `label tallyman.dev/injection is "true": write enabled, and restart`},
		"older than the label": {namespace: map[string]string{NamespaceLabel: "enabled"}, want: "made before it was to have one, or while the manager was away: restart"},
		"opted out":            {namespace: map[string]string{NamespaceLabel: "enabled"}, labels: map[string]string{PodLabel: "false"}, want: "its label tallyman.dev/inject is false"},
		"disabled":             {namespace: map[string]string{NamespaceLabel: "disabled"}, labels: map[string]string{PodLabel: "true"}, want: "label tallyman.dev/injection is disabled"},
		"refused":              {annotations: map[string]string{ReasonAnnotation: "hostNetwork"}, want: "hostNetwork"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: c.labels, Annotations: c.annotations}}
		if got := WhyMissing(pod, c.namespace); !strings.Contains(got, c.want) {
			t.Errorf("%s: %q does not say %q", name, got, c.want)
		}
	}
}

func TestWhyASidecarIsNotReady(t *testing.T) {
	started := true
	waiting := func(reason, message string) corev1.ContainerStatus {
		return corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for name, c := range map[string]struct {
		status corev1.ContainerStatus
		want   string
	}{
		"no Secret":      {waiting("CreateContainerConfigError", `secret "tallyman-store" not found`), `its sidecar cannot start: secret "tallyman-store" not found`},
		"crashes":        {waiting("CrashLoopBackOff", "back-off 10s"), "its sidecar cannot start: CrashLoopBackOff; see kubectl logs orders-a --container tallyman"},
		"no Redis":       {corev1.ContainerStatus{State: running}, "its sidecar has not read the policies; if it stays so, see kubectl logs orders-a --container tallyman"},
		"just made":      {waiting("PodInitializing", ""), ""},
		"it has started": {corev1.ContainerStatus{State: running, Started: &started}, ""},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "orders-a"}}
		c.status.Name = Container
		pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "migrate", State: running}, c.status}
		if got := WhyNotReady(pod); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
