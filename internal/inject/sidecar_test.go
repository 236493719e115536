package inject

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestTheOperatorPortOfASidecarIsFound(t *testing.T) {
	app := corev1.Container{Name: "app", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}
	injected, err := Inject(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{app}}}, Config{Image: "sidecar:v1"})
	if err != nil {
		t.Fatal(err)
	}
	if port, err := OperatorPort(injected.Pod); port != operatorPort || err != nil {
		t.Errorf("got port %d, %v", port, err)
	}
}

func TestWhyASidecarHasNoOperatorPort(t *testing.T) {
	for args, want := range map[string]string{
		"":                                 "an older version",
		"--operator-listen=":               "is no address",
		"--operator-listen=:12082":         "is no address",
		"--operator-listen=10.0.0.1:12082": "is no address",
		"--operator-listen=127.0.0.1:0":    "is no address",
		"--operator-listen=127.0.0.1:1 --operator-listen=[::]:1": "is no address",
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: Container, Args: strings.Fields(args)}}}}
		if port, err := OperatorPort(pod); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got port %d, %v", args, port, err)
		}
	}
	if _, err := OperatorPort(&corev1.Pod{}); err == nil {
		t.Error("a pod without a sidecar has a port")
	}
}
