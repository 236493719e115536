package inject

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// defaultPort is the name of the port to take over if there are several.
const defaultPort = "http"

// maxPortName is the length of the longest name of a port, in bytes.
const maxPortName = 15

// appPort is a port of one of the pod's containers.
type appPort struct {
	container *corev1.Container
	port      *corev1.ContainerPort
}

// findPort finds the app's port by its name, or, without one, the port that is
// meant. Only ordinary containers are looked at: their ports are the ones that
// Services look up first.
func findPort(pod *corev1.Pod, name string) (appPort, error) {
	named := namedPorts(pod)
	names := namesOf(named)
	switch {
	case len(named) == 0:
		return appPort{}, errors.New("no container of the pod has a TCP port with a name: " +
			"give the app's port a name (ports: [{name: http, containerPort: …}]), and the Service this name as targetPort")
	case name != "":
		return only(named, name, fmt.Sprintf("annotation %s: no TCP port is called %.80q; there are: %s", PortAnnotation, name, names))
	case len(named) == 1:
		return named[0], nil
	default:
		return only(named, defaultPort, fmt.Sprintf("the pod has several ports and none is called %s: "+
			"name one of them in the annotation %s: %s", defaultPort, PortAnnotation, names))
	}
}

// only returns the one port of a name; none is an error with the given message.
func only(ports []appPort, name, none string) (appPort, error) {
	var found []appPort
	for _, p := range ports {
		if p.port.Name == name {
			found = append(found, p)
		}
	}
	switch len(found) {
	case 0:
		return appPort{}, errors.New(none)
	case 1:
		return found[0], nil
	default:
		return appPort{}, fmt.Errorf("containers %.63q and %.63q both call a port %q: rename one of them",
			found[0].container.Name, found[1].container.Name, name)
	}
}

func namedPorts(pod *corev1.Pod) (found []appPort) {
	for i := range pod.Spec.Containers {
		container := &pod.Spec.Containers[i]
		for j := range container.Ports {
			port := &container.Ports[j]
			if port.Name != "" && cmp.Or(port.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP {
				found = append(found, appPort{container, port})
			}
		}
	}
	return found
}

// maxNames bounds the ports that a refusal names.
const maxNames = 10

// namesOf lists names that nobody has validated yet.
func namesOf(ports []appPort) string {
	var names []string
	for _, p := range ports {
		names = append(names, strconv.Quote(cut(p.port.Name, maxPortName)))
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > maxNames {
		names = append(names[:maxNames], "…")
	}
	return strings.Join(names, ", ")
}

// giveUpName renames the port. The container's own probes and hooks go on to
// mean the app: the kubelet looks their names up in the same container.
func (a appPort) giveUpName(pod *corev1.Pod) {
	name := a.port.Name
	a.port.Name = freeName(pod, name)
	for _, p := range references(a.container) {
		if p.Type == intstr.String && p.StrVal == name {
			*p = intstr.FromInt32(a.port.ContainerPort)
		}
	}
}

// references are the ports of a container's probes and hooks. Those of gRPC
// probes are always numbers.
func references(c *corev1.Container) (ports []*intstr.IntOrString) {
	add := func(get *corev1.HTTPGetAction, socket *corev1.TCPSocketAction) {
		if get != nil {
			ports = append(ports, &get.Port)
		}
		if socket != nil {
			ports = append(ports, &socket.Port)
		}
	}
	for _, probe := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		if probe != nil {
			add(probe.HTTPGet, probe.TCPSocket)
		}
	}
	if c.Lifecycle != nil {
		for _, hook := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if hook != nil {
				add(hook.HTTPGet, hook.TCPSocket)
			}
		}
	}
	return ports
}

// declaredPorts are those of all containers of a pod.
func declaredPorts(pod *corev1.Pod) (ports []corev1.ContainerPort) {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		ports = append(ports, c.Ports...)
	}
	return ports
}

// freeName is a name for an app's port that no port of the pod has.
func freeName(pod *corev1.Pod, name string) string {
	taken := map[string]bool{}
	for _, p := range declaredPorts(pod) {
		taken[p.Name] = true
	}
	const prefix = "app-"
	for i := 0; ; i++ {
		suffix := ""
		if i > 0 {
			suffix = strconv.Itoa(i)
		}
		// A name must not end with a hyphen, nor have two in a row.
		free := strings.TrimRight(prefix+cut(name, maxPortName-len(prefix)-len(suffix)), "-") + suffix
		if !taken[free] {
			return free
		}
	}
}

// freePort is the first port from the wanted one on that no container declares.
func freePort(pod *corev1.Pod, wanted int32) int32 {
	taken := map[int32]bool{}
	for _, p := range declaredPorts(pod) {
		taken[p.ContainerPort] = true
	}
	for taken[wanted] {
		wanted++
	}
	return wanted
}
