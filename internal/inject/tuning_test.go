package inject_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/tallyman-dev/tallyman/internal/inject"
)

// pod has one container with a port.
func pod(annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "orders", Annotations: annotations},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "app", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
		}}},
	}
}

func TestAFaultyAnnotationIsToldWithItsRemedy(t *testing.T) {
	for name, test := range map[string]struct{ key, value, want string }{
		"a port by number":          {inject.PortAnnotation, "8080", "must be the name of one of the pod's ports"},
		"an empty port":             {inject.PortAnnotation, "", "must be the name of one of the pod's ports"},
		"a port that is not there":  {inject.PortAnnotation, "grpc", `no TCP port is called "grpc"; there are: "http"`},
		"a quantity with a space":   {inject.CPUAnnotation, "100 m", "must be a request or request/limit"},
		"nothing":                   {inject.CPUAnnotation, "0", "above 0"},
		"less than nothing":         {inject.CPUAnnotation, "-1", "above 0"},
		"a limit below the request": {inject.CPUAnnotation, "2/1", "must not be below the request"},
		"three quantities":          {inject.CPUAnnotation, "1/2/3", `not "2/3"`},
		"no limit after all":        {inject.MemoryAnnotation, "64Mi/", "must be a request or request/limit"},
		"too little memory":         {inject.MemoryAnnotation, "1Mi", "must be 32Mi or more"},
		"memory in megabits":        {inject.MemoryAnnotation, "64m", "must be 32Mi or more"},
		"a level that is none":      {inject.LogLevelAnnotation, "verbose", "must be one of debug, info, warn, error"},
		"hops below nothing":        {inject.TrustedHopsAnnotation, "-1", "must be a number from 0 to 16"},
		"a label as an annotation":  {inject.PodLabel, "true", "is a label: move it"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := inject.Inject(pod(map[string]string{test.key: test.value}), config)
			if err == nil || !strings.Contains(err.Error(), test.key) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("the refusal does not name %s and %q: %v", test.key, test.want, err)
			}
		})
	}
}

func TestARefusalIsBoundedAndInOneLine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SampledFrom([]string{
			inject.PortAnnotation, inject.CPUAnnotation, inject.MemoryAnnotation, inject.LogLevelAnnotation, inject.TrustedHopsAnnotation,
		}).Draw(t, "key")
		value := rapid.StringN(0, 2000, -1).Draw(t, "value")
		if _, err := inject.Inject(pod(map[string]string{key: value}), config); err != nil {
			if text := err.Error(); len(text) > 1000 || strings.ContainsAny(text, "\r\n") {
				t.Errorf("a refusal of %d bytes: %q", len(text), text)
			}
		}
	})
}

// Whatever ports a pod has, Services that knew the name find the sidecar, and the
// kubelet finds the app.
func TestPortsAreTakenOverByName(t *testing.T) {
	name := rapid.StringMatching(`[a-z0-9]{1,5}(-?[a-z][a-z0-9]?){1,3}`)
	number := rapid.Int32Range(12078, 12090) // near the sidecar's own
	rapid.Check(t, func(t *rapid.T) {
		app := rapid.SliceOfNDistinct(name, 1, 4, rapid.ID).Draw(t, "names")
		before := pod(map[string]string{inject.PortAnnotation: app[0]})
		container := &before.Spec.Containers[0]
		container.Ports = nil
		numbers := map[string]int32{}
		for _, n := range app {
			numbers[n] = number.Draw(t, "number")
			container.Ports = append(container.Ports, corev1.ContainerPort{Name: n, ContainerPort: numbers[n]})
		}
		container.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString(rapid.SampledFrom(app).Draw(t, "probed"))},
		}}
		injected, err := inject.Inject(before, config)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		declared := map[int32]int{}
		for i, c := range []corev1.Container{injected.Pod.Spec.InitContainers[0], injected.Pod.Spec.Containers[0]} {
			for _, p := range c.Ports {
				if wrong := validation.IsValidPortName(p.Name); len(wrong) > 0 || seen[p.Name] {
					t.Errorf("port %q is there twice, or: %v", p.Name, wrong)
				}
				seen[p.Name] = true
				if isSidecar := i == 0; isSidecar {
					declared[p.ContainerPort]++
				} else if declared[p.ContainerPort] > 0 {
					t.Errorf("both listen on %d", p.ContainerPort)
				}
			}
		}
		if got := injected.Pod.Spec.InitContainers[0].Ports[0].Name; got != app[0] {
			t.Errorf("the sidecar's port is called %q", got)
		}
		probed := container.ReadinessProbe.HTTPGet.Port.StrVal
		if got := lookUp(injected.Pod.Spec.Containers[0], injected.Pod.Spec.Containers[0].ReadinessProbe.HTTPGet.Port); got != numbers[probed] {
			t.Errorf("the probe of port %s asks %d, not %d", probed, got, numbers[probed])
		}
	})
}

// lookUp finds a probe's port as the kubelet does.
func lookUp(c corev1.Container, port intstr.IntOrString) int32 {
	if port.Type == intstr.Int {
		return port.IntVal
	}
	for _, p := range c.Ports {
		if p.Name == port.StrVal {
			return p.ContainerPort
		}
	}
	return 0
}
