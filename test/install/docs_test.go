package install

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/store"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// block is the code of a language in docs/install.md, of which there is one.
func block(t *testing.T, language string) string {
	t.Helper()
	found := regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(read(t, root+"/docs/install.md"), -1)
	if len(found) != 1 {
		t.Fatalf("docs/install.md has %d blocks of %s", len(found), language)
	}
	return found[0][1]
}

func TestTheKustomizationOfTheDocsHasTheImages(t *testing.T) {
	dir, err := os.MkdirTemp("testdata", "docs-") // kustomize wants relative paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	here := strings.NewReplacer("https://github.com/tallyman-dev/tallyman/", "../../../../", "?ref=v0.1.0", "")
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(here.Replace(block(t, "yaml"))), 0o600); err != nil {
		t.Fatal(err)
	}
	manager := build(t, dir)["Deployment tallyman-manager"]
	for _, want := range []string{
		"image: registry.example.com/tallyman/manager:v0.1.0\n",
		"- --sidecar-image=tallyman/sidecar:dev\n        - --sidecar-image=registry.example.com/tallyman/sidecar:v0.1.0\n",
		"replicas: 1\n",
	} {
		if !strings.Contains(manager, want) {
			t.Errorf("the manager does not have %q:\n%s", want, manager)
		}
	}
}

func TestTheCommandsOfTheDocsLeadThereAndBack(t *testing.T) {
	c := startCluster(t)
	dir := t.TempDir()
	for _, version := range []string{"0.1.0", "0.2.0"} {
		mustRun(t, helmPath, "package", chart, "--version="+version, "--app-version=v"+version, "--destination="+dir)
	}
	image := func() string {
		return c.kubectl(t, "get", "deployment", "tallyman-manager", "--namespace="+system, "--ignore-not-found",
			"--output=jsonpath={.spec.template.spec.containers[0].image}")
	}
	images := []string{image()}
	for _, line := range regexp.MustCompile("helm (install|upgrade|rollback|uninstall) tallyman [^`\n]+").FindAllString(read(t, root+"/docs/install.md"), -1) {
		c.helm(t, strings.Fields(strings.ReplaceAll(line, "dist/", dir+"/"))[1:]...)
		images = append(images, image())
	}
	want := []string{"", "tallyman/manager:v0.1.0", "tallyman/manager:v0.2.0", "tallyman/manager:v0.1.0", ""}
	if !slices.Equal(images, want) {
		t.Errorf("the managers were of %q, not of %q", images, want)
	}

	c.kubectl(t, "apply", "--namespace=shop", "--filename=config/samples/orders.yaml")
	c.kubectl(t, "label", "namespace", "shop", "tallyman.dev/injection=enabled")
	_, uninstalling, _ := strings.Cut(read(t, root+"/docs/install.md"), "\n## Uninstalling\n")
	commands := regexp.MustCompile("(?m)^ +kubectl ((delete ratelimit|label|get pods|delete customresource).*)$").FindAllStringSubmatch(uninstalling, -1)
	for _, command := range commands {
		c.kubectl(t, strings.Fields(command[1])...)
		if command[2] == "delete ratelimit" {
			if left := c.kubectl(t, "get", "ratelimitpolicies", "--all-namespaces", "--output=name"); left != "" {
				t.Errorf("there are still %s", left)
			}
		}
	}
	if labels := c.kubectl(t, "get", "namespace", "shop", "--output=jsonpath={.metadata.labels}"); strings.Contains(labels, "injection") {
		t.Errorf("the namespace is still opted in: %s", labels)
	}
	if left := c.ours(t, clusterScoped...); len(commands) != 4 || len(left) > 0 {
		t.Errorf("after %d commands there are still %v", len(commands), left)
	}
}

// awkward are keys that a command line would trip over.
var awkward = []string{"tallyman:c:shop:orders{/it's}", "tallyman:c:shop:orders{/a b\n\"c\" \\}", "tallyman:c:shop:orders{/é\xff}"}

func TestWhatIsLeftInRedisIsRemoved(t *testing.T) {
	server := testredis.Start(t)
	fill(t, server.Client(t))
	removeAll(t, server)
	if got := server.Client(t).Keys(t.Context(), "*").Val(); len(got) != 1 || got[0] != "other" {
		t.Errorf("there are %d keys, not only those of others: %.100q", len(got), got)
	}
}

func TestWhatIsLeftOnAClusterIsRemovedMasterByMaster(t *testing.T) {
	cluster := testredis.StartCluster(t, 3)
	fill(t, cluster.Client(t))
	var left []string
	for _, server := range cluster.Servers {
		removeAll(t, server)
		left = append(left, server.Client(t).Keys(t.Context(), "*").Val()...)
	}
	if len(left) != 1 || left[0] != "other" {
		t.Errorf("there are %d keys, not only those of others: %.100q", len(left), left)
	}
}

// fill writes more than one step removes, and a key of somebody else.
func fill(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	pipeline := client.Pipeline()
	for i := range 5000 {
		pipeline.Set(t.Context(), fmt.Sprintf("tallyman:c:shop:orders{%d}", i), 1, time.Hour)
	}
	for _, key := range awkward {
		pipeline.Set(t.Context(), key, 1, time.Hour)
	}
	pipeline.Set(t.Context(), "other", 1, 0)
	if _, err := pipeline.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := store.New(client, store.DefaultPrefix).Publish(t.Context(), "shop", definitions()); err != nil {
		t.Fatal(err)
	}
}

func removeAll(t *testing.T, server *testredis.Server) {
	t.Helper()
	script := exec.CommandContext(t.Context(), "sh", "-eu", "-c", block(t, "sh"))
	script.Env = append(os.Environ(), "REDIS_URL="+server.URL())
	if _, err := output(script); err != nil {
		t.Fatal(err)
	}
}

func TestWithoutPoliciesAllInRedisEndsByItself(t *testing.T) {
	client := testredis.Start(t).Client(t)
	s := store.New(client, store.DefaultPrefix)
	for _, definitions := range [][]policy.Definition{definitions(), nil} {
		if _, err := s.Publish(t.Context(), "shop", definitions); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range client.Keys(t.Context(), "*").Val() {
		if ttl := client.TTL(t.Context(), key).Val(); ttl <= 0 || ttl > 24*time.Hour {
			t.Errorf("%s stays for %v", key, ttl)
		}
	}
}

func definitions() []policy.Definition {
	return []policy.Definition{{Namespace: "shop", Name: "orders"}}
}
