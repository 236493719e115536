package inject_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/tallyman-dev/tallyman/internal/golden"
	"github.com/tallyman-dev/tallyman/internal/inject"
	"github.com/tallyman-dev/tallyman/internal/sidecar"
	"github.com/tallyman-dev/tallyman/internal/store"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// config is the manager's in tests.
var config = inject.Config{Image: "tallyman/sidecar:v1.2.3", StoreSecret: "tallyman-store", Prefix: "tallyman"}

// input is a file testdata/*.in.yaml.
type input struct {
	Pod      corev1.Pod       `json:"pod"`
	Services []corev1.Service `json:"services"`
	// Image, StoreURL and Tracing are other than the usual ones.
	Image    string          `json:"image"`
	StoreURL string          `json:"storeURL"`
	Tracing  []corev1.EnvVar `json:"tracing"`
}

// output is a file testdata/*.out.yaml: what comes of it.
type output struct {
	Refusal  string      `json:"refusal,omitempty"`
	Warnings []string    `json:"warnings,omitempty"`
	Bypasses []string    `json:"bypasses,omitempty"`
	Pod      *corev1.Pod `json:"pod,omitempty"`
}

func TestGoldenFiles(t *testing.T) { golden.Run(t, run) }

func run(in input) output {
	injected, err := inject.Inject(&in.Pod, in.config())
	if err != nil {
		return output{Refusal: err.Error()}
	}
	out := output{Warnings: injected.Warnings, Pod: injected.Pod}
	for i := range in.Services {
		if bypass := inject.Bypass(injected.Pod, &in.Services[i]); bypass != "" {
			out.Bypasses = append(out.Bypasses, bypass)
		}
	}
	return out
}

func (in *input) config() inject.Config {
	c := config
	if in.Image != "" {
		c.Image = in.Image
	}
	c.StoreURL, c.Tracing = in.StoreURL, in.Tracing
	return c
}

// The pod that is given belongs to the caller.
func TestThePodThatIsGivenIsNotChanged(t *testing.T) {
	for name, in := range golden.Inputs[input](t) {
		before := in.Pod.DeepCopy()
		_, _ = inject.Inject(&in.Pod, in.config())
		if diff := cmp.Diff(before, &in.Pod); diff != "" {
			t.Errorf("%s (-before +after):\n%s", name, diff)
		}
	}
}

// Case K9: webhooks are called again after others have changed the pod.
func TestASecondInjectionChangesNothing(t *testing.T) {
	for name, in := range golden.Inputs[input](t) {
		once, err := inject.Inject(&in.Pod, in.config())
		if err != nil {
			continue
		}
		changed := once.Pod.DeepCopy()
		changed.Spec.Containers = append(changed.Spec.Containers, corev1.Container{
			Name: "added", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 9}},
		})
		twice, err := inject.Inject(changed, in.config())
		if diff := cmp.Diff(changed, twice.Pod); err != nil || diff != "" {
			t.Errorf("%s: %v (-once +twice):\n%s", name, err, diff)
		}
	}
}

// What is generated must be understood by the program that gets it.
func TestTheSidecarUnderstandsItsFlags(t *testing.T) {
	for name, in := range golden.Inputs[input](t) {
		injected, err := inject.Inject(&in.Pod, in.config())
		if err != nil || injected.Port == nil {
			continue
		}
		container := injected.Pod.Spec.InitContainers[0]
		env := map[string]string{"TALLYMAN_STORE": "redis://redis:6379", "POD_NAME": "orders-1", "POD_NAMESPACE": "shop"}
		c, err := start(t, container, env)
		if err != nil {
			t.Errorf("%s: %v: %q", name, err, container.Args)
			continue
		}
		if c.Limiter.Labels["app"] != "orders" || len(c.Limiter.ProbeSources) != 2 || c.Limiter.Namespace != "shop" || c.Limiter.Pod != "orders-1" {
			t.Errorf("%s: the sidecar does not know its pod: %+v", name, c.Limiter)
		}
		for name := range env {
			if !slices.ContainsFunc(container.Env, func(e corev1.EnvVar) bool { return e.Name == name }) {
				t.Errorf("the sidecar has no variable %s", name)
			}
		}
	}
}

// The API server decides by the selectors in config/webhook which pods are to have
// a sidecar; IsAsked says the same of pods that it did not ask about.
func TestWhoIsAskedIsWhatTheWebhooksSelect(t *testing.T) {
	var webhooks admissionregistrationv1.MutatingWebhookConfiguration
	text, err := os.ReadFile("../../config/webhook/manifests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &webhooks); err != nil {
		t.Fatal(err)
	}
	asked := map[bool]int{}
	for _, name := range []string{"shop", "kube-system"} {
		for _, ofNamespace := range []string{"", "enabled", "disabled", "sometimes"} {
			for _, ofPod := range []string{"", "true", "false", "sometimes"} {
				namespace, pod := labels.Set{"kubernetes.io/metadata.name": name}, labels.Set{}
				if ofNamespace != "" {
					namespace[inject.NamespaceLabel] = ofNamespace
				}
				if ofPod != "" {
					pod[inject.PodLabel] = ofPod
				}
				selected := slices.ContainsFunc(webhooks.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool {
					return selects(t, w.NamespaceSelector, namespace) && selects(t, w.ObjectSelector, pod)
				})
				if got := inject.IsAsked(pod, namespace); got != selected {
					t.Errorf("pod %v in namespace %v: asked %v, selected %v", pod, namespace, got, selected)
				}
				asked[selected]++
			}
		}
	}
	if asked[true] == 0 || asked[false] == 0 {
		t.Errorf("all pods are the same: %v", asked)
	}
}

func selects(t *testing.T, selector *metav1.LabelSelector, set labels.Set) bool {
	t.Helper()
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Matches(set)
}

// start is what the kubelet does before a sidecar runs, and what that makes of it.
func start(t *testing.T, container corev1.Container, env map[string]string) (sidecar.Config, error) {
	t.Helper()
	labels := filepath.Join(t.TempDir(), "labels")
	if err := os.WriteFile(labels, []byte("app=\"orders\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := slices.Clone(container.Args)
	for i, arg := range args {
		arg = strings.Replace(arg, "/etc/tallyman/pod/labels", labels, 1)
		args[i] = strings.Replace(arg, "$(NODE_ADDRESSES)", "192.0.2.1,2001:db8::1", 1)
	}
	return sidecar.ParseConfig(args, func(name string) string { return env[name] }, t.Output())
}

// The Secret has the certificate of a private authority, where there is one.
func TestTheSidecarTrustsTheAuthorityOfItsSecret(t *testing.T) {
	certificates := testredis.NewCertificates(t)
	redis := testredis.Start(t, append(certificates.Args(), "--tls-auth-clients", "no")...)
	ca, err := os.ReadFile(certificates.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	in := golden.Inputs[input](t)["orders"]
	injected, err := inject.Inject(&in.Pod, in.config())
	if err != nil {
		t.Fatal(err)
	}
	container := injected.Pod.Spec.InitContainers[0]
	for name, c := range map[string]struct {
		secret map[string]string
		fault  string
	}{
		"its authority": {secret: map[string]string{"ca.crt": string(ca)}},
		"none":          {secret: nil, fault: "unknown authority"},
		"no PEM":        {secret: map[string]string{"ca.crt": "MIIBszCCAVmgAwIBAgIBATAKBggqhkjOPQQDAjAZ"}, fault: "the store's CA has no certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			env := map[string]string{"POD_NAME": "orders-1", "POD_NAMESPACE": "shop"}
			for _, e := range container.Env {
				if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
					env[e.Name] = c.secret[e.ValueFrom.SecretKeyRef.Key]
				}
			}
			env["TALLYMAN_STORE"] = "rediss://" + redis.Addr
			config, err := start(t, container, env)
			if err != nil {
				t.Fatal(err)
			}
			client, err := store.Connect(store.ConnectOptions{URL: config.Limiter.Store, TLS: store.TLSOptions(config.Limiter.TLS)})
			if err == nil {
				defer client.Close()
				err = client.Ping(t.Context()).Err()
			}
			switch {
			case c.fault == "" && err != nil:
				t.Error(err)
			case c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)):
				t.Errorf("%v does not say %q", err, c.fault)
			}
		})
	}
}

func TestASkippedPodTellsWhy(t *testing.T) {
	pod := &corev1.Pod{}
	_, reason := inject.Inject(pod, config)
	if reason == nil {
		t.Fatal("a pod without ports got a sidecar")
	}
	skipped := inject.Skip(pod, reason)
	if got := skipped.Annotations[inject.ReasonAnnotation]; got != reason.Error() {
		t.Errorf("the pod says %q, not %q", got, reason)
	}
	if pod.Annotations != nil {
		t.Error("the pod that was given is changed")
	}
}

// A label's value that is none would have the API server refuse every pod.
func TestTheVersionIsALabelsValue(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}}}}}
	for image, want := range map[string]string{
		"sidecar": "latest", "host:5000/sidecar": "latest", "sidecar:v1.2": "v1.2", "sidecar:_nightly-": "nightly", "sidecar:__": "",
		"sidecar:" + strings.Repeat("a", 62) + "._b": strings.Repeat("a", 62), "sidecar:v1@sha256:0123456789abcdef": "v1",
	} {
		injected, err := inject.Inject(pod, inject.Config{Image: image})
		if err != nil {
			t.Fatal(err)
		}
		got := injected.Pod.Labels[inject.VersionLabel]
		if problems := validation.IsValidLabelValue(got); got != want || len(problems) > 0 {
			t.Errorf("%s: %q, want %q: %q", image, got, want, problems)
		}
	}
}
