package inject_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/tallyman-dev/tallyman/internal/inject"
)

// peer is a pod that another one is asked by.
type peer struct{ pod, namespace labels.Set }

var (
	stranger = peer{}
	scraper  = peer{namespace: labels.Set{"metrics": "enabled"}}
)

// The examples of config/network-policy and config/redis fit the pods that we make.
func TestNetworkPoliciesAdmitWhoTheySay(t *testing.T) {
	app := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "app", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
	}}}}
	injected, err := inject.Inject(app, config)
	if err != nil {
		t.Fatal(err)
	}
	pod := injected.Pod
	ours := peer{pod: pod.Labels}
	manager := labels.Set(deployment(t).Labels)
	manager["app.kubernetes.io/name"] = "tallyman" // by config/default
	redis := labels.Set{"app.kubernetes.io/name": "redis"}
	checks := labels.Set{"app.kubernetes.io/name": "tallyman-check-api"}

	for _, tc := range []struct {
		file   string
		pod    labels.Set
		port   int32
		by     peer
		admits bool
	}{
		{"network-policy/sidecars", pod.Labels, port(t, pod.Spec, "http"), stranger, true},
		{"network-policy/sidecars", pod.Labels, 8080, stranger, false}, // past the sidecar
		{"network-policy/sidecars", pod.Labels, 8080, scraper, false},
		{"network-policy/sidecars", pod.Labels, port(t, pod.Spec, "tallyman-admin"), stranger, false},
		{"network-policy/sidecars", pod.Labels, port(t, pod.Spec, "tallyman-admin"), scraper, true},
		{"network-policy/manager", manager, port(t, deployment(t).Spec, "webhook"), stranger, true},
		{"network-policy/manager", manager, port(t, deployment(t).Spec, "metrics"), stranger, false},
		{"network-policy/manager", manager, port(t, deployment(t).Spec, "metrics"), scraper, true},
		{"network-policy/manager", manager, port(t, deployment(t).Spec, "health"), scraper, false},
		{"network-policy/check-api", checks, 8082, stranger, false},
		{"network-policy/check-api", checks, 8082, peer{pod: labels.Set{"tallyman.dev/asks": "true"}}, true},
		{"redis/redis", redis, 6379, stranger, false},
		{"redis/redis", redis, 6379, peer{pod: manager}, true},
		{"redis/redis", redis, 6379, ours, true},
		{"redis/redis", redis, 6379, peer{pod: labels.Set{"tallyman.dev/store": "true"}}, true},
	} {
		policy := networkPolicy(t, tc.file)
		if !matches(t, &policy.Spec.PodSelector, tc.pod) {
			t.Errorf("%s does not select %v", tc.file, tc.pod)
		}
		if got := admits(t, policy, tc.port, tc.by); got != tc.admits {
			t.Errorf("%s: %+v reaches port %d: %v, want %v", tc.file, tc.by, tc.port, got, tc.admits)
		}
	}
}

// networkPolicy is the one of a file of manifests, which may have other objects.
func networkPolicy(t *testing.T, file string) (policy networkingv1.NetworkPolicy) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../config", file+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for manifest := range bytes.SplitSeq(text, []byte("\n---\n")) {
		if !bytes.Contains(manifest, []byte("kind: NetworkPolicy\n")) {
			continue
		}
		if err := yaml.UnmarshalStrict(manifest, &policy); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		return policy
	}
	t.Fatalf("%s has no NetworkPolicy", file)
	return policy
}

// deployment is the pod template of config/manager.
func deployment(t *testing.T) corev1.PodTemplateSpec {
	t.Helper()
	text, err := os.ReadFile("../../config/manager/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict(text, &d); err != nil {
		t.Fatal(err)
	}
	return d.Spec.Template
}

// port is the number of a port by its name.
func port(t *testing.T, spec corev1.PodSpec, name string) int32 {
	t.Helper()
	for _, container := range slices.Concat(spec.InitContainers, spec.Containers) {
		for _, p := range container.Ports {
			if p.Name == name {
				return p.ContainerPort
			}
		}
	}
	t.Fatalf("there is no port %q", name)
	return 0
}

// admits evaluates what our examples use of NetworkPolicies.
func admits(t *testing.T, policy networkingv1.NetworkPolicy, port int32, by peer) bool {
	t.Helper()
	return slices.ContainsFunc(policy.Spec.Ingress, func(rule networkingv1.NetworkPolicyIngressRule) bool {
		at := slices.ContainsFunc(rule.Ports, func(p networkingv1.NetworkPolicyPort) bool {
			return p.Port.IntVal == port || p.Port.StrVal == "redis" && port == 6379
		})
		from := len(rule.From) == 0 || slices.ContainsFunc(rule.From, func(p networkingv1.NetworkPolicyPeer) bool {
			return matches(t, p.PodSelector, by.pod) && matches(t, p.NamespaceSelector, by.namespace)
		})
		return at && from
	})
}

// matches says whether a selector, if there is one, selects what has these labels.
func matches(t *testing.T, selector *metav1.LabelSelector, set labels.Set) bool {
	t.Helper()
	if selector == nil {
		return true
	}
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	return s.Matches(set)
}
