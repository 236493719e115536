package inject

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// WhyMissing says why a pod has no sidecar, and what to do. namespace has the labels
// of its namespace.
func WhyMissing(pod *corev1.Pod, namespace map[string]string) string {
	if reason := pod.Annotations[ReasonAnnotation]; reason != "" {
		return reason
	}
	if IsAsked(pod.Labels, namespace) {
		return "it was made before it was to have one, or while the manager was away: " +
			"restart its workload (kubectl rollout restart), or delete the pod if it has none"
	}
	switch value, labelled := namespace[NamespaceLabel]; {
	case pod.Labels[PodLabel] == "false":
		return fmt.Sprintf("its label %s is false", PodLabel)
	case value == "disabled":
		return fmt.Sprintf("its namespace's label %s is disabled", NamespaceLabel)
	case labelled:
		return fmt.Sprintf("its namespace's label %s is %q: write enabled, and restart its workload (kubectl rollout restart)",
			NamespaceLabel, value)
	default:
		return fmt.Sprintf("nothing asks for one: label its namespace %s=enabled, and restart its workload (kubectl rollout restart)",
			NamespaceLabel)
	}
}

// WhyNotReady says why a pod's sidecar does not enforce yet, and where more is told;
// it is empty if that cannot be seen in the pod's status, or will be over in a moment.
func WhyNotReady(pod *corev1.Pod) string {
	logs := fmt.Sprintf("kubectl logs %s --container %s", pod.Name, Container)
	for i := range pod.Status.InitContainerStatuses {
		s := &pod.Status.InitContainerStatuses[i]
		if s.Name != Container {
			continue
		}
		switch waiting := s.State.Waiting; {
		case waiting != nil && waiting.Reason == "CreateContainerConfigError":
			return "its sidecar cannot start: " + waiting.Message // of a Secret, without its content
		case waiting != nil && (waiting.Reason == "PodInitializing" || waiting.Reason == "ContainerCreating"):
			return ""
		case waiting != nil: // messages of the rest tell times, which change
			return fmt.Sprintf("its sidecar cannot start: %s; see %s", waiting.Reason, logs)
		case s.State.Running != nil && (s.Started == nil || !*s.Started):
			return "its sidecar has not read the policies; if it stays so, see " + logs
		}
	}
	return ""
}
