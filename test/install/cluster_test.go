package install

import (
	"encoding/base64"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/testenv"
)

// cluster is an API server with nothing of ours in it. There are no nodes and no
// controllers: no pod runs.
type cluster struct {
	kubectlPath, kubeconfig, home string
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	plane, err := testenv.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.Stop(); err != nil {
			t.Error(err)
		}
	})
	c := &cluster{kubectlPath: plane.Kubectl, home: t.TempDir()}
	c.kubeconfig = filepath.Join(c.home, "kubeconfig")
	if err := plane.WriteKubeconfig(c.kubeconfig); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "delete", "customresourcedefinition", crd)
	c.kubectl(t, "create", "namespace", "shop")
	return c
}

const crd = "ratelimitpolicies.tallyman.dev"

func (c *cluster) command(t *testing.T, program string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "HOME="+c.home, "KUBECONFIG="+c.kubeconfig)
	return output(cmd)
}

func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.command(t, c.kubectlPath, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (c *cluster) helm(t *testing.T, args ...string) string {
	t.Helper()
	path, err := helmPath()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.command(t, path, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// ours are the names of the objects of some kinds that belong to an installation.
func (c *cluster) ours(t *testing.T, kinds ...string) []string {
	t.Helper()
	out := c.kubectl(t, "get", strings.Join(kinds, ","), "--all-namespaces", "--output=name")
	return slices.DeleteFunc(strings.Fields(out), func(name string) bool { return !strings.Contains(name, "tallyman") })
}

// Kinds of all objects that an installation consists of.
var (
	clusterScoped = []string{"clusterroles", "clusterrolebindings", "mutatingwebhookconfigurations", "customresourcedefinitions"}
	namespaced    = []string{"deployments", "services", "serviceaccounts", "roles", "rolebindings", "poddisruptionbudgets",
		"networkpolicies", "configmaps"}
)

func TestTheAPIServerTakesWhatTheChartComesTo(t *testing.T) {
	c := startCluster(t)
	c.kubectl(t, "create", "namespace", system)
	for _, path := range append(valuesFiles(t), chart+"/values.yaml") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			var text strings.Builder
			for name, manifest := range render(t, "--values="+path) {
				if strings.HasPrefix(name, "PodMonitor ") {
					continue // of the Prometheus operator, which is not here
				}
				text.WriteString("---\n" + manifest)
			}
			file := filepath.Join(t.TempDir(), "manifests.yaml")
			if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
				t.Fatal(err)
			}
			c.kubectl(t, "create", "--dry-run=server", "--validate=strict", "--filename="+file)
		})
	}
}

func TestARelease(t *testing.T) {
	c := startCluster(t)
	old := oldChart(t)

	notes := c.helm(t, "--namespace="+system, "install", "tallyman", old, "--create-namespace")
	if !strings.Contains(notes, "kubectl create secret generic tallyman-store --namespace "+system) {
		t.Errorf("it does not say what to do next: %s", notes)
	}
	c.kubectl(t, "apply", "--namespace=shop", "--filename=config/samples/orders.yaml")
	policy := c.policy(t)
	c.fillIn(t)
	authority := c.authority(t)

	t.Run("is upgraded, and the definition of policies with it", func(t *testing.T) {
		if got := c.shortNames(t); got != `["old"]` {
			t.Fatalf("the old chart's policies are also called %s", got)
		}
		c.helm(t, "--namespace="+system, "upgrade", "tallyman", chartPath(t), "--values=test/install/testdata/production.in.yaml")
		if got := c.shortNames(t); got != `["tally"]` {
			t.Errorf("policies are also called %s", got)
		}
		if got := c.replicas(t); got != "3" {
			t.Errorf("there are %s replicas", got)
		}
		c.expectUntouched(t, policy, authority)
	})
	t.Run("is rolled back", func(t *testing.T) {
		c.helm(t, "--namespace="+system, "rollback", "tallyman", "1")
		if got := c.replicas(t); got != "2" {
			t.Errorf("there are %s replicas", got)
		}
		c.expectUntouched(t, policy, authority)
	})
	t.Run("leaves only the policies when it is uninstalled", func(t *testing.T) {
		out := c.helm(t, "--namespace="+system, "uninstall", "tallyman")
		if !strings.Contains(out, crd) {
			t.Errorf("it does not say that it keeps the definition of policies: %s", out)
		}
		if got := c.ours(t, clusterScoped...); !slices.Equal(got, []string{"customresourcedefinition.apiextensions.k8s.io/" + crd}) {
			t.Errorf("in the cluster there are still %v", got)
		}
		if got := c.ours(t, namespaced...); len(got) > 0 {
			t.Errorf("in its namespace there are still %v", got)
		}
		if got := c.policy(t); got != policy {
			t.Errorf("the policy was %s, and is %s", policy, got)
		}
	})
	t.Run("is installed again where policies are", func(t *testing.T) {
		c.helm(t, "--namespace="+system, "install", "tallyman", chartPath(t))
		if got := c.policy(t); got != policy {
			t.Errorf("the policy was %s, and is %s", policy, got)
		}
	})
}

func TestAReleaseTakesOverAnInstallationByManifests(t *testing.T) {
	c := startCluster(t)
	c.kubectl(t, "apply", "--server-side", "--kustomize=config/default")
	c.kubectl(t, "apply", "--namespace=shop", "--filename=config/samples/orders.yaml")
	policy := c.policy(t)
	c.fillIn(t)
	authority := c.authority(t)

	c.helm(t, "--namespace="+system, "install", "tallyman", chartPath(t), "--take-ownership", "--force-conflicts", "--set=replicas=3")
	if got := c.replicas(t); got != "3" {
		t.Errorf("there are %s replicas", got)
	}
	c.expectUntouched(t, policy, authority)
}

// bundle is any certificate, in base64 as the API server wants it.
var bundle = sync.OnceValue(func() string {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return base64.StdEncoding.EncodeToString(certificate)
})

// fillIn does what the manager does in the first moment: it makes an authority, and
// tells the API server of it.
func (c *cluster) fillIn(t *testing.T) {
	t.Helper()
	c.kubectl(t, "patch", "secret", "tallyman-webhook-ca", "--namespace="+system, `--patch={"data":{"tls.crt":"QQ==","tls.key":"Qg=="}}`)
	c.kubectl(t, "patch", "mutatingwebhookconfiguration", "tallyman-injector", "--type=json", `--patch=[
	  {"op":"add","path":"/webhooks/0/clientConfig/caBundle","value":"`+bundle()+`"},
	  {"op":"add","path":"/webhooks/1/clientConfig/caBundle","value":"`+bundle()+`"}]`)
}

// authority is what there is of the webhooks' certificates.
func (c *cluster) authority(t *testing.T) string {
	t.Helper()
	return c.kubectl(t, "get", "secret", "tallyman-webhook-ca", "--namespace="+system, "--output=jsonpath={.data}") +
		c.kubectl(t, "get", "mutatingwebhookconfiguration", "tallyman-injector", "--output=jsonpath={.webhooks[*].clientConfig.caBundle}")
}

func (c *cluster) policy(t *testing.T) string {
	t.Helper()
	return c.kubectl(t, "get", "ratelimitpolicy", "orders", "--namespace=shop", "--output=jsonpath={.metadata.uid} {.metadata.generation}")
}

func (c *cluster) replicas(t *testing.T) string {
	t.Helper()
	return c.kubectl(t, "get", "deployment", "tallyman-manager", "--namespace="+system, "--output=jsonpath={.spec.replicas}")
}

func (c *cluster) shortNames(t *testing.T) string {
	t.Helper()
	return c.kubectl(t, "get", "customresourcedefinition", crd, "--output=jsonpath={.spec.names.shortNames}")
}

func (c *cluster) expectUntouched(t *testing.T, policy, authority string) {
	t.Helper()
	if got := c.policy(t); got != policy {
		t.Errorf("the policy was %s, and is %s", policy, got)
	}
	if got := c.authority(t); got != authority {
		t.Errorf("the authority was %s, and is %s", authority, got)
	}
}

func chartPath(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(chart)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// oldChart is a chart with another definition of policies.
func oldChart(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tallyman")
	if err := os.CopyFS(dir, os.DirFS(chart)); err != nil {
		t.Fatal(err)
	}
	definition := filepath.Join(dir, "generated", "crd.yaml")
	text := strings.Replace(read(t, definition), "- tally\n", "- old\n", 1)
	if err := os.WriteFile(definition, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}
