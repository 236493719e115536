package v1alpha1_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/testenv"
)

// cluster is a real API server with the CRD of config/crd/bases.
var cluster struct {
	client.Client
	kubectl, kubeconfig string
}

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	plane, err := testenv.New()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := plane.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}()
	dir, err := os.MkdirTemp("", "tallyman-api-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	cluster.kubectl, cluster.kubeconfig = plane.Kubectl, filepath.Join(dir, "kubeconfig")
	// As kubectl does, the client asks for unknown fields to be refused.
	scheme := runtime.NewScheme()
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	utilruntime.Must(corev1.AddToScheme(scheme))
	c, err := client.New(plane.Config, client.Options{Scheme: scheme})
	if err == nil {
		cluster.Client = client.WithFieldValidation(c, metav1.FieldValidationStrict)
		err = plane.WriteKubeconfig(cluster.kubeconfig)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// create has the API server check and default a policy with this spec, without
// storing it, and returns the spec that it would store.
func create(t *testing.T, spec []byte) ([]byte, error) {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("RateLimitPolicy"))
	object.SetNamespace(metav1.NamespaceDefault)
	object.SetName("orders")
	var fields map[string]any
	// Other than the standard library's, it keeps integers exact.
	if err := json.Unmarshal(spec, &fields); err != nil {
		t.Fatal(err)
	}
	object.Object["spec"] = fields
	if err := cluster.Create(t.Context(), object, client.DryRunAll); err != nil {
		return nil, err
	}
	stored, err := json.Marshal(object.Object["spec"])
	if err != nil {
		t.Fatal(err)
	}
	return stored, nil
}

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), cluster.kubectl,
		append([]string{"--kubeconfig", cluster.kubeconfig}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %q: %v\n%s", args, err, out)
	}
	return string(out)
}
