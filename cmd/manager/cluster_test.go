package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/limiter"
	"github.com/tallyman-dev/tallyman/internal/operator"
	"github.com/tallyman-dev/tallyman/internal/store"
	"github.com/tallyman-dev/tallyman/internal/testenv"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// home is the namespace into which config/default installs the manager.
const home = "tallyman-system"

// isLeader is the metric of the manager that holds the lease.
const isLeader = `leader_election_master_status{name="manager.tallyman.dev"} 1`

// cluster is an API server that config/default is applied to, and its
// administrator's client.
type cluster struct {
	client.Client
	plane      *testenv.ControlPlane
	kubectl    func(args ...string) string
	kubeconfig string // the manager's
}

func install(t *testing.T) *cluster {
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
	scheme := runtime.NewScheme()
	c := &cluster{plane: plane, kubeconfig: filepath.Join(t.TempDir(), "manager")}
	c.kubectl = kubectl(t, plane)
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	if c.Client, err = client.New(plane.Config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	c.kubectl("apply", "--server-side", "--force-conflicts", "--kustomize=../../config/default")
	c.kubectl("apply", "--filename=../../config/network-policy")
	if err := plane.WriteKubeconfig(c.kubeconfig); err != nil {
		t.Fatal(err)
	}
	c.kubectl("config", "--kubeconfig="+c.kubeconfig, "set-credentials", "manager", "--token="+c.token(home, "tallyman-manager"))
	c.kubectl("config", "--kubeconfig="+c.kubeconfig, "set-context", "--current", "--user=manager")
	return c
}

// kubectl runs commands as the administrator.
func kubectl(t *testing.T, plane *testenv.ControlPlane) func(args ...string) string {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "admin")
	if err := plane.WriteKubeconfig(kubeconfig); err != nil {
		t.Fatal(err)
	}
	return func(args ...string) string {
		t.Helper()
		cmd := exec.Command(plane.Kubectl, append([]string{"--kubeconfig=" + kubeconfig}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("kubectl %s: %v\n%s", args[0], err, out)
		}
		return strings.TrimSpace(string(out))
	}
}

// token is a ServiceAccount's.
func (c *cluster) token(namespace, name string) string {
	return c.kubectl("create", "token", name, "--namespace="+namespace)
}

// scraper is the token of one who may see metrics.
func (c *cluster) scraper() string {
	c.kubectl("create", "serviceaccount", "scraper", "--namespace=default")
	c.kubectl("create", "clusterrolebinding", "scraper",
		"--clusterrole=tallyman-metrics-reader", "--serviceaccount=default:scraper")
	return c.token("default", "scraper")
}

func (c *cluster) startReplica(t *testing.T, redis *testredis.Server, args ...string) *process {
	t.Helper()
	return start(t, c.kubeconfig, append(args, "--store="+redis.URL(), "--leader-elect", "--leader-election-namespace="+home)...)
}

// create makes a policy in a namespace of its own.
func (c *cluster) create(t *testing.T, requests int64) *v1alpha1.RateLimitPolicy {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "shop-"}}
	if err := c.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	policy := &v1alpha1.RateLimitPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "orders"},
		Spec: v1alpha1.RateLimitPolicySpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "orders"}},
			Limits:   []v1alpha1.Limit{{Name: "total", Requests: &requests, Window: "1m"}},
		},
	}
	if err := c.Create(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	return policy
}

// edit changes how many requests a policy admits. The manager's writes to the
// status do not conflict with it.
func (c *cluster) edit(t *testing.T, policy *v1alpha1.RateLimitPolicy, requests int64) {
	t.Helper()
	before := policy.DeepCopy()
	policy.Spec.Limits[0].Requests = &requests
	if err := c.Patch(t.Context(), policy, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
}

// programmed checks what the policy's condition says.
func (c *cluster) programmed(t *testing.T, policy *v1alpha1.RateLimitPolicy, status metav1.ConditionStatus, reason string) func() error {
	return func() error {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(policy), policy); err != nil {
			return err
		}
		condition := meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.ConditionProgrammed)
		if condition == nil || condition.Status != status || condition.Reason != reason {
			return fmt.Errorf("the condition Programmed is not %s for %s: %+v", status, reason, condition)
		}
		return nil
	}
}

// holder is who has the lease: nobody, if it is released.
func (c *cluster) holder(t *testing.T) string {
	t.Helper()
	var lease coordinationv1.Lease
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: home, Name: "manager.tallyman.dev"}, &lease); err != nil {
		t.Fatal(err)
	}
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// published checks that the store has the policy as it is now.
func published(t *testing.T, redis *testredis.Server, policy *v1alpha1.RateLimitPolicy) func() error {
	t.Helper()
	s := store.New(redis.Client(t), store.DefaultPrefix)
	return func() error {
		snapshot, err := s.Load(context.Background(), policy.Namespace)
		if err != nil {
			return err
		}
		if len(snapshot.Definitions) != 1 || snapshot.Definitions[0].Generation != policy.Generation ||
			*snapshot.Definitions[0].Spec.Limits[0].Requests != *policy.Spec.Limits[0].Requests {
			return fmt.Errorf("generation %d of the policy is not published: %+v", policy.Generation, snapshot)
		}
		return nil
	}
}

// roles tells which of two managers leads. It is an error if none or both do.
func roles(t *testing.T, one, two *process) (leader, follower *process, err error) {
	t.Helper()
	first, second := one.shows(t, isLeader)(), two.shows(t, isLeader)()
	switch {
	case first == nil && second != nil:
		return one, two, nil
	case first != nil && second == nil:
		return two, one, nil
	case first == nil:
		return nil, nil, errors.New("both managers lead")
	default:
		return nil, nil, fmt.Errorf("no manager leads: %w", first)
	}
}

// serves checks that a path of the health server answers well.
func (p *process) serves(t *testing.T, path string) func() error {
	return func() error {
		_, err := get(t, p.health+path, "", http.StatusOK)
		return err
	}
}

// shows checks that the metrics have lines.
func (p *process) shows(t *testing.T, lines ...string) func() error {
	return func() error {
		text, err := get(t, p.metrics, "", http.StatusOK)
		if err != nil {
			return err
		}
		for _, line := range lines {
			if !strings.Contains(text, "\n"+line+"\n") {
				return fmt.Errorf("the metrics do not have %s", line)
			}
		}
		return nil
	}
}

// tellsOf checks that the operator API finds a server well, with all scripts.
func (p *process) tellsOf(t *testing.T, server string) func() error {
	t.Helper()
	ask, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.operator+operator.PathStore, nil)
	if err != nil {
		t.Fatal(err)
	}
	ask.Header.Set(operator.Header, "1")
	return func() error {
		if _, err := get(t, p.operator+operator.PathStore, "", http.StatusForbidden); err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(ask)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		var health operator.StoreHealth
		if err := json.NewDecoder(response.Body).Decode(&health); err != nil {
			return err
		}
		if len(health.Nodes) != 1 || health.Nodes[0].Address != server || health.Nodes[0].Error != "" ||
			health.Nodes[0].Scripts != len(store.Scripts())+len(limiter.Scripts()) || health.Nodes[0].LatencyMicros == 0 {
			return fmt.Errorf("the store is told to be %+v", health)
		}
		return nil
	}
}
