package docs

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/tallyman-dev/tallyman/internal/testenv"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	code := m.Run()
	if err := stopCluster(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// stopCluster ends the control plane, if a test has started it.
var stopCluster = func() error { return nil }

// cluster is a control plane for all tests of the package, started by the first that
// needs it.
var cluster = sync.OnceValues(func() (*testenv.ControlPlane, error) {
	c, err := testenv.New()
	if err == nil {
		stopCluster = c.Stop
	}
	return c, err
})

func startCluster(t *testing.T) *testenv.ControlPlane {
	t.Helper()
	c, err := cluster()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// admin is a client with all rights, for objects of any kind.
func admin(t *testing.T) client.Client {
	t.Helper()
	c, err := client.New(startCluster(t).Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// known says whether the API server serves objects of this kind.
func known(c client.Client, object *unstructured.Unstructured) bool {
	gvk := object.GroupVersionKind()
	_, err := c.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	return !apimeta.IsNoMatchError(err)
}
