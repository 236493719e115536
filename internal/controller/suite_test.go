package controller_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/controller"
	"github.com/tallyman-dev/tallyman/internal/limiter"
	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/store"
	"github.com/tallyman-dev/tallyman/internal/testenv"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

const (
	// resync is short, so that many fit into a test.
	resync = 200 * time.Millisecond
	// patience is for what has no promise of its own: tests run beside compilers.
	patience = 20 * time.Second
)

var (
	scheme = runtime.NewScheme()
	// admin is a user's client: no cache, all rights.
	admin client.Client
	// managerConfig is the manager's: it has the rights of config/rbac and no others.
	managerConfig *rest.Config
	// logs are the managers'.
	logs = gbytes.NewBuffer()
	// scripts are those of the counters and of the definitions.
	scripts = limiter.Scripts()
)

func TestController(t *testing.T) {
	maps.Copy(scripts, store.Scripts())
	RegisterFailHandler(Fail)
	RunSpecs(t, "Controller")
}

var _ = BeforeSuite(func(ctx context.Context) {
	ctrl.SetLogger(zap.New(zap.WriteTo(io.MultiWriter(logs, GinkgoWriter)), zap.UseDevMode(true)))
	SetDefaultEventuallyTimeout(patience)
	SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	EnforceDefaultTimeoutsWhenUsingContexts()
	Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())

	cluster, err := testenv.New()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(cluster.Stop)
	admin, err = client.New(cluster.Config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())

	install(ctx, cluster)
	managerConfig = rest.CopyConfig(cluster.Config)
	managerConfig.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:tallyman-system:tallyman-manager",
		Groups:   []string{"system:serviceaccounts", "system:authenticated"},
	}
})

// install applies config/default as its comment says.
func install(ctx context.Context, cluster *testenv.ControlPlane) {
	GinkgoHelper()
	kubeconfig := filepath.Join(GinkgoT().TempDir(), "kubeconfig")
	Expect(cluster.WriteKubeconfig(kubeconfig)).To(Succeed())
	out, err := exec.CommandContext(ctx, cluster.Kubectl, "--kubeconfig", kubeconfig,
		"apply", "--server-side", "--force-conflicts", "-k", "../../config/default").CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
}

// world is a namespace and a Redis of one test's own.
type world struct {
	ns    string
	redis *testredis.Server
	store *countingStore
	// patches counts the statuses that the manager has written, changed or not.
	patches atomic.Int64
	// registry has the metrics of the manager that was started last.
	registry *prometheus.Registry
}

// countingStore counts how often the manager has come by.
type countingStore struct {
	*store.Store
	publishes atomic.Int64
}

func (s *countingStore) Publish(ctx context.Context, ns string, d []policy.Definition) (store.Publication, error) {
	publication, err := s.Store.Publish(ctx, ns, d)
	s.publishes.Add(1)
	return publication, err
}

func newWorld(ctx context.Context, redisArgs ...string) *world {
	GinkgoHelper()
	w := &world{redis: testredis.Start(GinkgoTB(), redisArgs...)}
	w.store = newStore(w.redis.URL())
	w.ns = newNamespace(ctx)
	return w
}

func newStore(url string) *countingStore {
	GinkgoHelper()
	connection, err := store.Connect(store.ConnectOptions{URL: url})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(connection.Close)
	return &countingStore{Store: store.New(connection, store.DefaultPrefix)}
}

// newNamespace makes a namespace whose policies end with the test, before its
// manager does: the next test's manager must not find them.
func newNamespace(ctx context.Context) string {
	GinkgoHelper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "shop-"}}
	Expect(admin.Create(ctx, ns)).To(Succeed())
	DeferCleanup(func(ctx context.Context) {
		Expect(admin.DeleteAllOf(ctx, &v1alpha1.RateLimitPolicy{}, client.InNamespace(ns.Name))).To(Succeed())
	})
	return ns.Name
}

// startManager starts a manager as cmd/manager does. It is stopped by stop, or at
// the latest with the test.
func (w *world) startManager() (stop func()) {
	GinkgoHelper()
	mgr, err := ctrl.NewManager(managerConfig, ctrl.Options{
		Scheme:     scheme,
		Cache:      controller.CacheOptions(),
		NewClient:  w.newClient,
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},

		LeaderElection:                true,
		LeaderElectionID:              "manager.tallyman.dev",
		LeaderElectionNamespace:       "tallyman-system",
		LeaderElectionReleaseOnCancel: true,
	})
	Expect(err).NotTo(HaveOccurred())
	w.registry = prometheus.NewRegistry()
	Expect(controller.Setup(mgr, controller.Options{
		Store: w.store, Scripts: scripts, Resync: resync, Registry: w.registry,
	})).To(Succeed())

	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- mgr.Start(ctx) }()
	var running atomic.Bool
	running.Store(true)
	stop = func() {
		if running.Swap(false) {
			cancel()
			Expect(<-stopped).To(Succeed())
		}
	}
	DeferCleanup(stop)
	return stop
}

// newClient is a manager's client that counts in patches.
func (w *world) newClient(config *rest.Config, options client.Options) (client.Client, error) {
	c, err := client.NewWithWatch(config, options)
	if err != nil {
		return nil, err
	}
	return interceptor.NewClient(c, interceptor.Funcs{SubResourcePatch: func(
		ctx context.Context, c client.Client, subresource string, o client.Object, p client.Patch, options ...client.SubResourcePatchOption,
	) error {
		w.patches.Add(1)
		return c.SubResource(subresource).Patch(ctx, o, p, options...)
	}}), nil
}

// resyncs waits until the manager has published n times more.
func (w *world) resyncs(ctx context.Context, n int64) {
	GinkgoHelper()
	before := w.store.publishes.Load()
	Eventually(ctx, w.store.publishes.Load).Should(BeNumerically(">=", before+n))
}

// policy is one that selects the pods of app=orders.
func (w *world) policy(name string, limits ...v1alpha1.Limit) *v1alpha1.RateLimitPolicy {
	if len(limits) == 0 {
		limits = []v1alpha1.Limit{{Name: "total", Requests: new(int64(100)), Window: "1m"}}
	}
	return &v1alpha1.RateLimitPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name},
		Spec: v1alpha1.RateLimitPolicySpec{
			Selector: &metav1.LabelSelector{MatchLabels: orders},
			Limits:   limits,
		},
	}
}

// targeting is a policy for a workload.
func (w *world) targeting(name, kind, target string) *v1alpha1.RateLimitPolicy {
	p := w.policy(name)
	p.Spec.Selector, p.Spec.TargetRefs = nil, []v1alpha1.TargetRef{{Kind: kind, Name: target}}
	return p
}

func (w *world) create(ctx context.Context, objects ...client.Object) {
	GinkgoHelper()
	for _, o := range objects {
		Expect(admin.Create(ctx, o)).To(Succeed())
	}
}

// edit changes a policy's spec by a patch, as kubectl apply does.
func edit(ctx context.Context, p *v1alpha1.RateLimitPolicy, change func(*v1alpha1.RateLimitPolicySpec)) {
	GinkgoHelper()
	before := p.DeepCopy()
	change(&p.Spec)
	Expect(admin.Patch(ctx, p, client.MergeFrom(before))).To(Succeed())
}

var orders = map[string]string{"app": "orders"}

func (w *world) pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name, Labels: orders},
		Spec:       podSpec,
	}
}

var podSpec = corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "example.com/app"}}}

func (w *world) deployment(name string, labels map[string]string) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec},
		},
	}
}

func (w *world) service(name string, selector map[string]string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name},
		Spec:       corev1.ServiceSpec{Selector: selector, Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

// beat reports as the sidecar of a pod does.
func (w *world) beat(ctx context.Context, pod string, generations map[string]int64) {
	GinkgoHelper()
	// A store that was down is asked again after a moment only.
	Eventually(ctx, func(ctx context.Context) error {
		_, err := w.store.Pulse(w.ns).Beat(ctx, store.Heartbeat{Pod: pod, Policies: generations})
		return err
	}).Should(Succeed())
}

// published are the definitions in Redis, by name.
func (w *world) published(ctx context.Context) (map[string]policy.Definition, error) {
	snapshot, err := w.store.Load(ctx, w.ns)
	if err != nil {
		return nil, err
	}
	definitions := map[string]policy.Definition{}
	for _, d := range snapshot.Definitions {
		definitions[d.Name] = d
	}
	return definitions, nil
}

// conditions are a policy's: type → "status reason generation".
func conditions(p *v1alpha1.RateLimitPolicy) func(context.Context) (map[string]string, error) {
	return func(ctx context.Context) (map[string]string, error) {
		err := admin.Get(ctx, client.ObjectKeyFromObject(p), p)
		all := map[string]string{}
		for _, c := range p.Status.Conditions {
			all[c.Type] = fmt.Sprintf("%s %s %d", c.Status, c.Reason, c.ObservedGeneration)
		}
		return all, err
	}
}

func message(p *v1alpha1.RateLimitPolicy, condition string) string {
	GinkgoHelper()
	found := meta.FindStatusCondition(p.Status.Conditions, condition)
	Expect(found).NotTo(BeNil(), "condition %s", condition)
	return found.Message
}

// Keys of what the tests look at directly.
func (w *world) policiesKey() string { return "tallyman:policies:{" + w.ns + "}" }
func (w *world) revisionKey() string { return "tallyman:revision:{" + w.ns + "}" }

func (w *world) client() *redis.Client { return w.redis.Client(GinkgoTB()) }
