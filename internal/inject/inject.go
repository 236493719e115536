package inject

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Config is what all sidecars have in common.
type Config struct {
	// Image of the sidecar.
	Image string
	// StoreURL is where the store is, without credentials: pods show it. If it
	// is empty, it is taken from StoreSecret.
	StoreURL string
	// StoreSecret names a Secret in the pod's namespace with the keys url (unless
	// there is a StoreURL), username, password and ca.crt (PEM). The last three may
	// be missing.
	StoreSecret string
	// Prefix of all keys in the store; the manager's.
	Prefix string
	// Tracing are OpenTelemetry's variables of the environment; none is no tracing.
	Tracing []corev1.EnvVar
}

// Injection is what has become of a pod.
type Injection struct {
	// Pod has the sidecar. It is the pod that was given if that has one already,
	// or is to have none.
	Pod *corev1.Pod
	// Port is the app's, as it was before the sidecar took over its name; nil if
	// nothing was changed.
	Port *corev1.ContainerPort
	// Warnings are for the pod's author.
	Warnings []string
}

// Inject puts a sidecar into a copy of the pod. The error says why that cannot
// be, and what to do about it.
func Inject(pod *corev1.Pod, c Config) (Injection, error) {
	if HasSidecar(pod) || isMirror(pod) || pod.Labels[PodLabel] == "false" {
		return Injection{Pod: pod}, nil
	}
	if err := check(pod); err != nil {
		return Injection{}, err
	}
	tuning, warnings, err := parseTuning(pod.Annotations)
	if err != nil {
		return Injection{}, err
	}
	pod = pod.DeepCopy()
	app, err := findPort(pod, tuning.port)
	if err != nil {
		return Injection{}, err
	}
	before := *app.port
	sidecar := newContainer(pod, c, tuning, before)
	app.giveUpName(pod)
	// First, so that it serves before anything that comes after it can be asked.
	pod.Spec.InitContainers = slices.Insert(pod.Spec.InitContainers, 0, sidecar)
	pod.Spec.Volumes = append(pod.Spec.Volumes, labelsVolume())
	makeRoom(pod, sidecar.Resources)
	mark(pod, c.Image)
	if before.HostPort != 0 {
		warnings = append(warnings, fmt.Sprintf("requests to hostPort %d go past the Tallyman sidecar: remove the hostPort of port %q, "+
			"and let a Service lead to it", before.HostPort, before.Name))
	}
	return Injection{Pod: pod, Port: &before, Warnings: warnings}, nil
}

// Skip returns a copy of the pod that tells why it has no sidecar.
func Skip(pod *corev1.Pod, reason error) *corev1.Pod {
	pod = pod.DeepCopy()
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[ReasonAnnotation] = reason.Error()
	return pod
}

// AsksItself says whether the pod has a label of its own about injection, and
// does not just live in a namespace that is opted in.
func AsksItself(pod *corev1.Pod) bool {
	_, asks := pod.Labels[PodLabel]
	return asks
}

// IsAsked says whether a pod is to have a sidecar, by its own labels or by those of
// its namespace. It is what the selectors of the webhooks say.
func IsAsked(pod, namespace map[string]string) bool {
	if namespace[NamespaceLabel] == "disabled" || namespace[corev1.LabelMetadataName] == metav1.NamespaceSystem {
		return false
	}
	if own, asks := pod[PodLabel]; asks {
		return own != "false"
	}
	return namespace[NamespaceLabel] == "enabled"
}

// isMirror tells the images of static pods, which the API server only shows.
func isMirror(pod *corev1.Pod) bool {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror
}

// check refuses pods that can have no sidecar, whatever their ports.
func check(pod *corev1.Pod) error {
	value, labelled := pod.Labels[PodLabel] // "false" does not get here
	_, annotated := pod.Annotations[PodLabel]
	switch {
	case labelled && value != "true":
		return fmt.Errorf(`label %s must be "true" or "false", not %.80q`, PodLabel, value)
	case annotated:
		return fmt.Errorf("%s is a label: move it from the annotations to metadata.labels", PodLabel)
	case pod.Spec.HostNetwork:
		return errors.New("the pod has hostNetwork: true, and a sidecar's ports would be the node's: " +
			"use the pod network, or ask the check API of a sidecar of your own")
	case pod.Spec.OS != nil && pod.Spec.OS.Name != corev1.Linux:
		return fmt.Errorf("the pod's os is %s, and the sidecar runs on linux only", pod.Spec.OS.Name)
	case slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == volumeName }):
		return fmt.Errorf("the pod has a volume %q, which is the name of the sidecar's: give it another one", volumeName)
	default:
		return nil
	}
}

// mark lets it be seen which version of the sidecar a pod has.
func mark(pod *corev1.Pod, image string) {
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[VersionLabel] = version(image)
	delete(pod.Annotations, ReasonAnnotation) // of another pod, whose manifest was copied
}

// version is the tag of an image, as a label's value. An image that is named by
// a digest alone has the beginning of that.
func version(image string) string {
	name, digest, _ := strings.Cut(image, "@")
	_, tag, tagged := strings.Cut(name[strings.LastIndex(name, "/")+1:], ":")
	switch _, hash, hashed := strings.Cut(digest, ":"); {
	case tagged:
		return strings.Trim(cut(tag, maxLabelValue), "-_.")
	case hashed:
		return cut(hash, 12)
	default:
		return "latest"
	}
}

// maxLabelValue is the longest value of a label, in bytes.
const maxLabelValue = 63

func cut(s string, n int) string { return s[:min(len(s), n)] }
