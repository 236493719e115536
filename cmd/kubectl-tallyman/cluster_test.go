package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/inject"
	"github.com/tallyman-dev/tallyman/internal/operator"
	"github.com/tallyman-dev/tallyman/internal/testenv"
)

// operatorPortOfTests is the one in the pods' manifests. The kubelet leads it elsewhere.
const operatorPortOfTests = 12082

// testCluster is a control plane with a node, started for the first test that needs one.
type testCluster struct {
	*testenv.ControlPlane
	kubelet *testenv.Kubelet
	admin   client.Client
}

// startCluster is called once. TestMain stops what it has started.
var startCluster = sync.OnceValues(func() (*testCluster, error) {
	plane, err := testenv.New()
	if err != nil {
		return nil, err
	}
	c := &testCluster{ControlPlane: plane}
	stopCluster = c.stop
	return c, c.setUp()
})

// stopCluster ends the cluster, if there is one.
var stopCluster = func() error { return nil }

func (c *testCluster) stop() error {
	if c.kubelet != nil {
		c.kubelet.Stop()
	}
	return c.Stop()
}

func (c *testCluster) setUp() (err error) {
	scheme := runtime.NewScheme()
	_ = clientgoscheme.AddToScheme(scheme)
	_ = v1alpha1.AddToScheme(scheme)
	if c.admin, err = client.New(c.Config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	c.kubelet, err = c.StartKubelet(context.Background(), "node")
	return err
}

// world is a namespace of a test's own.
type world struct {
	*testCluster
	t          testing.TB
	ns         string
	kubeconfig string
}

func newWorld(t testing.TB) *world {
	t.Helper()
	c, err := startCluster()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{testCluster: c, t: t, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	if err := c.WriteKubeconfig(w.kubeconfig); err != nil {
		t.Fatal(err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "shop-"}}
	w.create(ns)
	w.ns = ns.Name
	return w
}

func (w *world) create(o client.Object) {
	w.t.Helper()
	if err := w.admin.Create(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
}

// run runs the program against the cluster, in the namespace.
func (w *world) run(args ...string) (stdout, stderr string, code int) {
	w.t.Helper()
	return run(w.t, "", append(args, "--kubeconfig", w.kubeconfig, "--namespace", w.ns)...)
}

// policy creates a policy from the text of its spec, in YAML's flow style.
func (w *world) policy(name, spec string) *v1alpha1.RateLimitPolicy {
	w.t.Helper()
	p := &v1alpha1.RateLimitPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		w.t.Fatal(err)
	}
	w.create(p)
	return p
}

func (w *world) deployment(name string) {
	w.t.Helper()
	labels := map[string]string{"app": name}
	w.create(&appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: templateOf(labels),
		},
	})
}

func templateOf(labels map[string]string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "example.com/app"}}},
	}
}

// barePod is a pod of app=orders without a sidecar.
func (w *world) barePod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name, Labels: map[string]string{"app": "orders"}},
		Spec: corev1.PodSpec{
			NodeName:   w.kubelet.Node,
			Containers: []corev1.Container{{Name: "app", Image: "example.com/app"}},
		},
	}
}

// pod creates a pod of app=orders whose sidecar has started, and answers as handler does.
func (w *world) pod(name string, handler http.Handler) {
	w.t.Helper()
	pod := w.barePod(name)
	always := corev1.ContainerRestartPolicyAlways
	pod.Spec.InitContainers = []corev1.Container{{
		Name: inject.Container, Image: "example.com/sidecar", RestartPolicy: &always,
		Args: []string{"--listen=:12080", fmt.Sprintf("--operator-listen=127.0.0.1:%d", operatorPortOfTests)},
	}}
	pod.Labels[inject.VersionLabel] = "v0.1.0"
	w.create(pod)
	if err := w.kubelet.Started(w.t.Context(), w.ns, name); err != nil {
		w.t.Fatal(err)
	}
	w.kubelet.Forward(w.ns, name, operatorPortOfTests, serve(w.t, handler))
}

// serve is the address of an operator API, which refuses requests without the header.
func serve(t testing.TB, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get(operator.Header) == "" {
			problem(rw, http.StatusForbidden, "there is no header "+operator.Header)
			return
		}
		handler.ServeHTTP(rw, r)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func problem(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"title": http.StatusText(status), "status": status, "detail": detail})
}

// answering is an operator API with one answer for each path.
func answering(answers map[string]any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, known := answers[r.URL.Path]
		if !known {
			problem(w, http.StatusNotFound, "there is no such path")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	})
}

func sorted(all []string) []string {
	slices.Sort(all)
	return all
}
