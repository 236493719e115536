package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/inject"
	"github.com/tallyman-dev/tallyman/internal/testenv"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

const password = "hunter2"

func TestMistakesInTheFlagsAreToldWithoutThePassword(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no store":              {nil, "--store is missing"},
		"an unknown flag":       {[]string{"--stroe=redis://u:hunter2@redis"}, "flag provided but not defined: -stroe"},
		"a value of no flag":    {[]string{"--store=", "redis://u:hunter2@redis"}, "argument 2 belongs to no flag"},
		"a missing file":        {[]string{"--store-file=/does/not/exist"}, "--store-file: open /does/not/exist"},
		"two stores":            {[]string{"--store=redis://u:hunter2@redis", "--store-file=url"}, "give one of them"},
		"an unknown scheme":     {[]string{"--store=http://u:hunter2@redis"}, "a scheme that is not known"},
		"no scheme":             {[]string{"--store=u:hunter2@redis:6379"}, "has no scheme"},
		"a port of letters":     {[]string{"--store=redis://u:hunter2@redis:port"}, "the store's URL"},
		"a database of letters": {[]string{"--store=redis://u:hunter2@redis/zero"}, "the store's URL"},
		"a broken escape":       {[]string{"--store=redis://u:hunter2%@redis"}, "the store's URL"},
		"an unknown parameter":  {[]string{"--store=redis://u:hunter2@redis?poolsize=1"}, "query parameter"},
		"a webhook without a port": {
			[]string{"--store=redis://redis", "--sidecar-image=sidecar", "--webhook-bind-address=9443"}, "--webhook-bind-address must be"},
		"a webhook without a namespace": {
			[]string{"--store=redis://redis", "--sidecar-image=sidecar"}, "--webhook-namespace is missing"},
		"a sidecars' store with a password": {
			[]string{"--store=redis://redis", "--sidecar-image=sidecar", "--sidecar-store=redis://u:hunter2@redis"}, "must have no credentials"},
		"a password among its parameters": {
			[]string{"--store=redis://redis", "--sidecar-image=sidecar", "--sidecar-store=redis://redis?password=hunter2"}, "must have no credentials"},
		"a sidecars' store that is no URL": {
			[]string{"--store=redis://redis", "--sidecar-image=sidecar", "--sidecar-store=hunter2"}, "--sidecar-store must be a URL"},
		"an operator API for all": {
			[]string{"--store=redis://redis", "--operator-bind-address=:8082"}, "--operator-bind-address must be a loopback address"},
		"too short a resync": {[]string{"--store=redis://u:hunter2@redis", "--resync=1ms"}, "--resync must be 1s or more"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), binary, test.args...)
			cmd.Env = []string{"KUBECONFIG=/does/not/exist"}
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != 1 {
				t.Errorf("the exit code is %d", code)
			}
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			if last := lines[len(lines)-1]; !strings.HasPrefix(last, "manager: ") || !strings.Contains(last, test.want) {
				t.Errorf("the last line does not say %q: %s", test.want, out)
			}
			if strings.Contains(string(out), password) {
				t.Errorf("the password is shown: %s", out)
			}
		})
	}
}

func TestHelpAndVersionAreNoMistakes(t *testing.T) {
	for arg, want := range map[string]string{"--help": "-leader-election-namespace", "--version": "manager "} {
		out, err := exec.CommandContext(t.Context(), binary, arg).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v: %s", arg, err, out)
		}
	}
}

// The managers have the rights of config/default, and no others.
func TestManagersInACluster(t *testing.T) {
	c := install(t)
	t.Run("one of two leads, and when it ends the other does", c.testTakeover)
	t.Run("one outlives an outage of the store, and tells of it", c.testOutage)
	t.Run("both put sidecars into pods, whoever leads", c.testInjection)
	t.Run("one with the flags of the Deployment shows metrics only to those who may see them", c.testDeployment)
	t.Run("are uninstalled without a trace, and stand in nobody's way then", c.testUninstalling)
}

func (c *cluster) testTakeover(t *testing.T) {
	redis := testredis.Start(t, "--requirepass", password)
	one, two := c.startReplica(t, redis), c.startReplica(t, redis)
	for _, p := range []*process{one, two} {
		testenv.Eventually(t, p.serves(t, "/healthz"))
		testenv.Eventually(t, p.serves(t, "/readyz"))
	}
	policy := c.create(t, 100)
	testenv.Eventually(t, published(t, redis, policy))

	var leader, follower *process
	testenv.Eventually(t, func() (err error) {
		leader, follower, err = roles(t, one, two)
		return err
	})
	testenv.Eventually(t, leader.shows(t, "tallyman_store_up 1", `tallyman_publishes_total{result="changed"} 1`))
	if text, err := get(t, follower.metrics, "", http.StatusOK); err != nil || strings.Contains(text, "tallyman_publishes_total") {
		t.Errorf("the follower publishes, too (%v):\n%s", err, text)
	}
	testenv.Eventually(t, follower.shows(t, "tallyman_store_up 1"))
	for _, p := range []*process{leader, follower} {
		testenv.Eventually(t, p.tellsOf(t, redis.Addr))
	}

	holder := c.holder(t)
	if code := leader.stop(t); code != 0 {
		t.Errorf("the leader ends with exit code %d", code)
	}
	c.edit(t, policy, 200)
	testenv.Eventually(t, published(t, redis, policy))
	testenv.Eventually(t, follower.shows(t, isLeader, `tallyman_publishes_total{result="changed"} 1`))
	if now := c.holder(t); now == "" || now == holder {
		t.Errorf("the lease was held by %q, and now is by %q", holder, now)
	}
	if code := follower.stop(t); code != 0 {
		t.Errorf("the follower ends with exit code %d", code)
	}
	if holder := c.holder(t); holder != "" {
		t.Errorf("%s has ended, and keeps the lease", holder)
	}
}

func (c *cluster) testOutage(t *testing.T) {
	redis := testredis.Start(t, "--requirepass", password)
	p := start(t, c.kubeconfig, "--store="+redis.URL(), "--resync=1s")
	policy := c.create(t, 100)
	testenv.Eventually(t, published(t, redis, policy))
	testenv.Eventually(t, c.programmed(t, policy, metav1.ConditionTrue, v1alpha1.ReasonProgrammed))

	redis.Kill()
	testenv.Eventually(t, p.shows(t, "tallyman_store_up 0", `tallyman_policies{condition="Programmed",status="True"} 0`))
	testenv.Eventually(t, c.programmed(t, policy, metav1.ConditionFalse, v1alpha1.ReasonStoreUnavailable))
	if err := errors.Join(p.serves(t, "/readyz")(), p.serves(t, "/healthz")()); err != nil {
		t.Errorf("an outage of the store is no reason to restart the manager: %v", err)
	}

	redis.Restart(t)
	testenv.Eventually(t, published(t, redis, policy))
	testenv.Eventually(t, c.programmed(t, policy, metav1.ConditionTrue, v1alpha1.ReasonProgrammed))
	testenv.Eventually(t, p.shows(t, "tallyman_store_up 1"))
	if code := p.stop(t); code != 0 {
		t.Errorf("the manager ends with exit code %d", code)
	}
	if strings.Contains(p.logged(t), password) {
		t.Error("the log has the password")
	}
}

// Each replica serves the webhook with a certificate of its own, by the leader's
// authority.
func (c *cluster) testInjection(t *testing.T) {
	redis := testredis.Start(t)
	args := []string{"--sidecar-image=tallyman/sidecar:v1", "--sidecar-store=redis://redis:6379", "--webhook-namespace=" + home}
	replicas := []*process{c.startReplica(t, redis, args...), c.startReplica(t, redis, args...)}
	for _, p := range replicas {
		testenv.Eventually(t, p.serves(t, "/readyz"))
	}
	namespace := c.optIn(t)
	for _, p := range replicas {
		c.ask(t, p)
		testenv.Eventually(t, func() error {
			// The API server may still ask the other one, or nobody.
			if err := c.injects(t, namespace); err != nil {
				return err
			}
			text, err := get(t, p.metrics, "", http.StatusOK)
			if err == nil && !strings.Contains(text, `tallyman_injections_total{result="injected"}`) {
				err = errors.New("another replica was asked")
			}
			return err
		})
	}
}

// optIn makes a namespace whose pods are to have sidecars.
func (c *cluster) optIn(t *testing.T) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "shop-", Labels: map[string]string{inject.NamespaceLabel: "enabled"},
	}}
	if err := c.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// ask has the API server ask a manager about pods.
func (c *cluster) ask(t *testing.T, p *process) {
	t.Helper()
	_, port, err := net.SplitHostPort(p.webhook)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.plane.SendWebhooksHere(t.Context(), "tallyman-injector", int32(number)); err != nil {
		t.Fatal(err)
	}
}

// injects checks that a new pod has a sidecar. An error is that of the API server.
func (c *cluster) injects(t *testing.T, namespace string) error {
	t.Helper()
	pod, err := c.createPod(t, namespace)
	if err != nil {
		return err
	}
	if len(pod.Spec.InitContainers) != 1 || pod.Spec.InitContainers[0].Image != "tallyman/sidecar:v1" {
		t.Errorf("the pod has no sidecar: %+v", pod.Spec)
	}
	return nil
}

func (c *cluster) createPod(t *testing.T, namespace string) (*corev1.Pod, error) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "orders-"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "app", Image: "orders", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
		}}},
	}
	return pod, c.Create(t.Context(), pod)
}

func (c *cluster) testDeployment(t *testing.T) {
	redis := testredis.Start(t)
	url := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(url, []byte(redis.URL()), 0o600); err != nil {
		t.Fatal(err)
	}
	// Of a flag that is there twice, the later one counts.
	p := start(t, c.kubeconfig, append(deploymentArgs(t), "--store-file="+url, "--leader-election-namespace="+home, "--webhook-namespace="+home)...)
	testenv.Eventually(t, p.serves(t, "/readyz"))
	metrics := strings.Replace(p.metrics, "http:", "https:", 1)
	for token, status := range map[string]int{
		"":                                http.StatusUnauthorized,
		c.token(home, "tallyman-manager"): http.StatusForbidden,
		c.scraper():                       http.StatusOK,
	} {
		testenv.Eventually(t, func() error {
			text, err := get(t, metrics, token, status)
			if err == nil && (status == http.StatusOK) != strings.Contains(text, "tallyman_store_up 1\n") {
				err = fmt.Errorf("with status %d comes %q", status, text)
			}
			return err
		})
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("the manager ends with exit code %d", code)
	}
}

// Also in the wrong order: the manager first, then the rest, and the labels never.
func (c *cluster) testUninstalling(t *testing.T) {
	p := c.startReplica(t, testredis.Start(t), "--sidecar-image=tallyman/sidecar:v1", "--webhook-namespace="+home)
	testenv.Eventually(t, p.serves(t, "/readyz"))
	c.create(t, 100)
	namespace := c.optIn(t)
	c.ask(t, p)
	testenv.Eventually(t, func() error { return c.injects(t, namespace) })
	if code := p.stop(t); code != 0 {
		t.Errorf("the manager ends with exit code %d", code)
	}
	if err := c.injects(t, namespace); err == nil {
		t.Error("nobody answers, and the pod is not refused")
	}

	// Here is no controller that would empty the namespace, which the command would wait for.
	c.kubectl("delete", "--kustomize=../../config/default", "--wait=false")
	testenv.Eventually(t, func() error {
		pod, err := c.createPod(t, namespace)
		if err == nil && len(pod.Spec.InitContainers) > 0 {
			err = fmt.Errorf("the pod has a sidecar: %+v", pod.Spec)
		}
		return err
	})
	testenv.Eventually(t, func() error {
		left := c.kubectl("get", "--output=name",
			"clusterroles,clusterrolebindings,customresourcedefinitions,mutatingwebhookconfigurations,validatingwebhookconfigurations")
		if strings.Contains(left, "tallyman") {
			return fmt.Errorf("the cluster still has some of %s", left)
		}
		return nil
	})
}

func deploymentArgs(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../config/manager/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var deployment appsv1.Deployment
	if err := yaml.UnmarshalStrict(text, &deployment); err != nil {
		t.Fatal(err)
	}
	return deployment.Spec.Template.Spec.Containers[0].Args
}
