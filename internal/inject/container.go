package inject

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	// The sidecar's ports, or the next ones that the pod does not declare. Below
	// 32768, where Linux takes ports for outgoing connections from.
	proxyPort    = 12080
	adminPort    = 12081
	operatorPort = 12082

	adminPortName = "tallyman-admin"

	// volumeName is of the volume with the pod's labels.
	volumeName = "tallyman-pod"
	volumePath = "/etc/tallyman/pod"
	labelsFile = "labels"

	tokenPath = "/var/run/secrets/kubernetes.io/serviceaccount"

	// nobody is the user and group of the image: restricted Pod Security wants a
	// number.
	nobody = 65532
)

// newContainer is the sidecar for an app's port.
func newContainer(pod *corev1.Pod, c Config, t tuning, app corev1.ContainerPort) corev1.Container {
	proxy := freePort(pod, proxyPort)
	admin := freePort(pod, max(adminPort, proxy+1))
	operator := freePort(pod, max(operatorPort, admin+1))
	return corev1.Container{
		Name:  Container,
		Image: c.Image,
		Args: []string{
			fmt.Sprintf("--listen=:%d", proxy),
			upstreamFlag + strconv.Itoa(int(app.ContainerPort)),
			fmt.Sprintf("--admin-listen=:%d", admin),
			// OperatorPort finds the port here. It is not declared below, where it would
			// say that others than the pod itself can reach it.
			fmt.Sprintf("%s127.0.0.1:%d", operatorFlag, operator),
			"--pod-labels-file=" + volumePath + "/" + labelsFile,
			"--prefix=" + c.Prefix,
			"--probe-from=$(NODE_ADDRESSES)",
			"--trusted-hops=" + strconv.Itoa(t.trustedHops),
			"--drain-timeout=" + drainTimeout(pod).String(),
			"--log-level=" + strings.ToUpper(t.logLevel),
		},
		Env:       environment(c, t),
		Resources: t.resources,
		Ports: []corev1.ContainerPort{
			{Name: app.Name, ContainerPort: proxy, Protocol: corev1.ProtocolTCP},
			{Name: adminPortName, ContainerPort: admin, Protocol: corev1.ProtocolTCP},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: volumeName, MountPath: volumePath, ReadOnly: true},
			// In the place of the pod's token, which the API server would mount
			// there otherwise: the sidecar has no business with it.
			{Name: volumeName, MountPath: tokenPath, ReadOnly: true},
		},
		// A native sidecar: it starts before the app, ends after it (so that no
		// hook has to delay its SIGTERM), and does not keep a Job from completing.
		RestartPolicy: new(corev1.ContainerRestartPolicyAlways),
		// The app does not start before the policies are known. A second is the
		// shortest period there is, and ten minutes of them are patience: a new
		// process would not find Redis any sooner.
		StartupProbe: probe("/readyz", admin, 1, 600),
		// Lenient: it is for a process that hangs, not for one that is short of CPU.
		LivenessProbe:            probe("/healthz", admin, 10, 6),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: &corev1.SecurityContext{
			RunAsNonRoot:             new(true),
			RunAsUser:                new(int64(nobody)),
			RunAsGroup:               new(int64(nobody)),
			AllowPrivilegeEscalation: new(false),
			ReadOnlyRootFilesystem:   new(true),
			Privileged:               new(false),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
}

func probe(path string, port, period, failures int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:     corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(port)}},
		PeriodSeconds:    period,
		TimeoutSeconds:   5,
		FailureThreshold: failures,
	}
}

// environment has what the sidecar takes from its pod and, without the manager
// having to see them, the store's credentials and its authority. That is a text like
// these, and no file: a flag could not name one that need not be there.
func environment(c Config, t tuning) []corev1.EnvVar {
	store := corev1.EnvVar{Name: "TALLYMAN_STORE", Value: c.StoreURL}
	if c.StoreURL == "" {
		// Not optional: the kubelet then tells which Secret is missing.
		store = fromSecret(store.Name, c.StoreSecret, "url", false)
	}
	memory := t.resources.Limits[corev1.ResourceMemory]
	return append([]corev1.EnvVar{
		fromField("POD_NAME", "metadata.name"),
		fromField("POD_NAMESPACE", "metadata.namespace"),
		fromField("NODE_ADDRESSES", "status.hostIPs"),
		store,
		fromSecret("TALLYMAN_STORE_USERNAME", c.StoreSecret, "username", true),
		fromSecret("TALLYMAN_STORE_PASSWORD", c.StoreSecret, "password", true),
		fromSecret("TALLYMAN_STORE_CA", c.StoreSecret, "ca.crt", true),
		// Go collects garbage in time rather than be killed; a tenth is for what
		// it does not count, such as the program itself.
		{Name: "GOMEMLIMIT", Value: strconv.FormatInt(memory.Value()/10*9, 10)},
	}, c.Tracing...)
}

func fromField(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path},
	}}
}

func fromSecret(name, secret, key string, optional bool) corev1.EnvVar {
	ref := &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: secret}, Key: key}
	if optional {
		ref.Optional = new(true)
	}
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: ref}}
}

// labelsVolume has the labels by which policies select the pod. The file follows
// when they change.
func labelsVolume() corev1.Volume {
	return corev1.Volume{Name: volumeName, VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
		Items: []corev1.DownwardAPIVolumeFile{{
			Path:     labelsFile,
			FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.labels"},
		}},
	}}}
}

// drainTimeout leaves some of the pod's time to end for the store to be told.
func drainTimeout(pod *corev1.Pod) time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		seconds = *pod.Spec.TerminationGracePeriodSeconds
	}
	const leave = 5
	return time.Duration(max(1, min(seconds, 3600)-leave)) * time.Second
}

// makeRoom adds the sidecar's resources to those of the pod as a whole, where it has
// some: they are what the app needs, and the API server refuses a pod whose
// containers ask for more. What has no limit counts as limited to its request there.
func makeRoom(pod *corev1.Pod, sidecar corev1.ResourceRequirements) {
	if pod.Spec.Resources == nil {
		return
	}
	limits := maps.Clone(sidecar.Requests)
	maps.Copy(limits, sidecar.Limits)
	addTo(pod.Spec.Resources.Requests, sidecar.Requests)
	addTo(pod.Spec.Resources.Limits, limits)
}

// addTo adds more of the resources that are in total.
func addTo(total, more corev1.ResourceList) {
	for name, sum := range total {
		sum.Add(more[name])
		total[name] = sum
	}
}
