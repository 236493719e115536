package monitoring

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/tallyman-dev/tallyman/internal/inject"
)

// object is what matters here of the component's objects, and of those that they name.
type object struct {
	Kind     string
	Metadata metav1.ObjectMeta
	Spec     struct {
		Selector            metav1.LabelSelector
		PodMetricsEndpoints []struct {
			Port, Scheme  string
			Authorization struct{ Credentials corev1.SecretKeySelector }
		}
		Template corev1.PodTemplateSpec
	}
	RoleRef  struct{ Name string }
	Subjects []struct{ Name, Namespace string }
}

// build is what kustomize makes of config/default with the component.
func build(t *testing.T) (all []object) {
	t.Helper()
	kustomize := exec.CommandContext(t.Context(), "go", "tool", "-modfile=hack/tools/go.mod", "kustomize", "build", "test/monitoring/testdata/monitored")
	kustomize.Dir = root
	var stderr strings.Builder
	kustomize.Stderr = &stderr
	out, err := kustomize.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	for text := range strings.SplitSeq(string(out), "\n---\n") {
		var o object
		if err := yaml.Unmarshal([]byte(text), &o); err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
	return all
}

func find(t *testing.T, all []object, kind, name string) object {
	t.Helper()
	i := slices.IndexFunc(all, func(o object) bool { return o.Kind == kind && o.Metadata.Name == name })
	if i < 0 {
		t.Fatalf("there is no %s %s", kind, name)
	}
	return all[i]
}

// scrapes checks that a PodMonitor's first endpoint is one of a pod's ports.
func scrapes(t *testing.T, monitor object, podLabels map[string]string, containers []corev1.Container) {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
	if err != nil || !selector.Matches(labels.Set(podLabels)) {
		t.Errorf("%s does not select pods with %v, %v", monitor.Metadata.Name, podLabels, err)
	}
	for _, c := range containers {
		for _, port := range c.Ports {
			if port.Name == monitor.Spec.PodMetricsEndpoints[0].Port {
				return
			}
		}
	}
	t.Errorf("%s scrapes a port that the pods do not have", monitor.Metadata.Name)
}

func TestWhomToScrapeIsThere(t *testing.T) {
	all := build(t)
	app := corev1.Container{Name: "app", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}
	injected, err := inject.Inject(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{app}}}, inject.Config{Image: "sidecar:v1"})
	if err != nil {
		t.Fatal(err)
	}
	scrapes(t, find(t, all, "PodMonitor", "tallyman-sidecars"), injected.Pod.Labels, injected.Pod.Spec.InitContainers)

	manager, monitor := find(t, all, "Deployment", "tallyman-manager"), find(t, all, "PodMonitor", "tallyman-manager")
	scrapes(t, monitor, manager.Spec.Template.Labels, manager.Spec.Template.Spec.Containers)
	if monitor.Metadata.Namespace != manager.Metadata.Namespace || monitor.Spec.PodMetricsEndpoints[0].Scheme != "https" {
		t.Errorf("the manager's monitor is %+v", monitor)
	}
	credentials := monitor.Spec.PodMetricsEndpoints[0].Authorization.Credentials
	account := find(t, all, "Secret", credentials.Name).Metadata.Annotations["kubernetes.io/service-account.name"]
	find(t, all, "ServiceAccount", account)
	binding := find(t, all, "ClusterRoleBinding", "tallyman-metrics-scraper")
	find(t, all, "ClusterRole", binding.RoleRef.Name)
	if binding.Subjects[0].Name != account || binding.Subjects[0].Namespace != monitor.Metadata.Namespace {
		t.Errorf("the role is bound to %v, want %s", binding.Subjects, account)
	}
}
