package docs

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// clone is what a reader of the documentation has: a clone of the repository, a cluster
// with a namespace that is in use, and a Redis.
type clone struct {
	dir   string
	env   []string
	admin client.Client
	// installer is the first page's dist/install.yaml, with which the cluster was set up.
	installer string
}

// shims stand in for programs. Those of go and make run what is built already, or look
// whether it is there: the work itself is that of other tests.
var shims = map[string]string{
	"go": `
case "$1 ${2:-}" in
"run ./cmd/kubectl-tallyman") shift 2; exec kubectl-tallyman "$@" ;;
"run ./cmd/sidecar") shift 2; exec sidecar "$@" ;;
"run ./"*) exec test -f "$REPOSITORY/$2/main.go" ;;
"build -o") exec test -f "$REPOSITORY/$4/main.go" ;;
"test ./"*) exec "$GO" -C "$REPOSITORY" list "$2" ;;
esac
echo "go: the test of the documentation does not know how to run: go $*" >&2
exit 1
`,
	"make": `
for argument; do [[ "$argument" == -* ]] && exit 1; done
PATH="$(dirname "$GO"):/usr/bin:/bin" exec /usr/bin/env make --dry-run --directory "$REPOSITORY" "$@"
`,
	// Ends when it listens. Ports are those that are free.
	"sidecar": `
exec 3< <(exec "$SIDECAR" "${@/127.0.0.1:80??/127.0.0.1:0}" 2>&1)
sidecar=$!
listens=
while read -r line <&3; do
  echo "$line"
  if [[ "$line" == *'"msg":"Listening"'* && -z "$listens" ]]; then listens=1; kill "$sidecar"; fi
done
[[ -n "$listens" ]]
`,
	// Has a server of its own for whatever host is named.
	"redis-cli": `
arguments=()
while (($#)); do
  case "$1" in
  -h | -p | -u | --user) shift 2 ;;
  --tls | --askpass) shift ;;
  *) arguments+=("$1"); shift ;;
  esac
done
exec "$REDIS_CLI" -p "$REDIS_PORT" "${arguments[@]}"
`,
}

func newClone(t *testing.T) *clone {
	t.Helper()
	server := startCluster(t)
	bin := t.TempDir()
	kubeconfig := filepath.Join(bin, "kubeconfig")
	if err := server.WriteKubeconfig(kubeconfig); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(server.Kubectl, filepath.Join(bin, "kubectl")); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(shims)) {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/usr/bin/env bash\nset -euo pipefail"+shims[name]), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	repository, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	programs := filepath.Join(bin, "programs")
	_, port, _ := strings.Cut(testredis.Shared(t).Addr, ":")
	c := &clone{admin: admin(t), env: append(os.Environ(),
		"KUBECACHEDIR="+filepath.Join(bin, "cache"), "PATH="+bin+":"+programs+":"+os.Getenv("PATH"), "KUBECONFIG="+kubeconfig,
		"REPOSITORY="+repository, "GO="+look(t, "go"), "SIDECAR="+filepath.Join(programs, "sidecar"),
		"REDIS_URL=redis://redis.example.com:6379", "REDIS_CLI="+look(t, "redis-cli", "valkey-cli"), "REDIS_PORT="+port,
	)}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", programs+"/", "./cmd/kubectl-tallyman", "./cmd/sidecar")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the programs: %v\n%s", err, out)
	}
	return c
}

// look is the path of a program that has a shim, under one of its names.
func look(t *testing.T, names ...string) string {
	t.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatalf("there is no %s: install it", strings.Join(names, " and no "))
	return ""
}

func (c *clone) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, name, args...)
	command.Dir, command.Env = c.dir, c.env
	return command
}

// setup makes the cluster that the documentation speaks of.
const setup = `
kubectl kustomize config/default > dist/install.yaml
kubectl apply --server-side --filename dist/install.yaml
`

// renew begins a page: in a directory that has those of the repository, and the files of
// testdata/clone to do with what one likes.
func (c *clone) renew(t *testing.T) {
	t.Helper()
	c.dir = t.TempDir()
	if err := os.CopyFS(c.dir, os.DirFS("testdata/clone")); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		from, err := filepath.Abs(filepath.Join(root, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if !entry.IsDir() || entry.Name() == "dist" {
			continue
		}
		if err := os.Symlink(from, filepath.Join(c.dir, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(c.dir, "dist"), 0o700); err != nil {
		t.Fatal(err)
	}
	installer := filepath.Join(c.dir, "dist/install.yaml")
	if c.installer == "" {
		if out, err := c.run(t.Context(), setup); err != nil {
			t.Fatalf("set up the cluster: %v\n%s", err, out)
		}
		c.installer = installer
	} else if err := os.Symlink(c.installer, installer); err != nil {
		t.Fatal(err)
	}
	c.applyObjects(t)
}

// applyObjects has the cluster have all of cluster.yaml, whatever became of it on the
// page before.
func (c *clone) applyObjects(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile("testdata/clone/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range betweenDocuments.Split(string(text), -1) {
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(document), &object.Object); err != nil {
			t.Fatal(err)
		}
		if err := c.admin.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object),
			client.FieldOwner("docs"), client.ForceOwnership); err != nil {
			t.Fatalf("apply %s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
}

// restore takes back what blocks of commands do more than once: they create Secrets, and
// restart workloads, which kubectl does once a second.
func (c *clone) restore(t *testing.T) {
	t.Helper()
	for _, namespace := range []string{"shop", "tallyman-system"} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tallyman-store"}}
		if err := client.IgnoreNotFound(c.admin.Delete(t.Context(), secret)); err != nil {
			t.Fatal(err)
		}
		started := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"template":{"metadata":{"annotations":null}}}}`))
		var deployments appsv1.DeploymentList
		if err := c.admin.List(t.Context(), &deployments, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		for i := range deployments.Items {
			if err := c.admin.Patch(t.Context(), &deployments.Items[i], started); err != nil {
				t.Fatal(err)
			}
		}
	}
}
