package v1_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/tallyman-dev/tallyman/internal/controller"
	"github.com/tallyman-dev/tallyman/internal/inject"
	"github.com/tallyman-dev/tallyman/internal/testenv"
	"github.com/tallyman-dev/tallyman/internal/testredis"
	webhookv1 "github.com/tallyman-dev/tallyman/internal/webhook/v1"
	"github.com/tallyman-dev/tallyman/internal/webhookcert"
)

const (
	home        = "tallyman-system"
	serviceName = "tallyman-webhook.tallyman-system.svc"
)

// world is a cluster with config/default and a manager that answers pods.
type world struct {
	client.Client // an administrator's
	config        *rest.Config
	warnings      *warnings
	address       string // of the webhook server
	clock         *clock // of its certificates
}

// clock is the time, and some more or less.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time          { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *clock) set(ahead time.Duration) { c.ahead.Store(int64(ahead)) }

// warnings are what the API server has answered beside its results.
type warnings struct {
	mu   sync.Mutex
	text []string
}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (w *warnings) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, text)
}

func (w *warnings) has(part string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.text, func(text string) bool { return strings.Contains(text, part) })
}

func TestPodsInACluster(t *testing.T) {
	w := newWorld(t)
	t.Run("that ask for a sidecar get one", w.testInjected)
	t.Run("are valid with a sidecar when they were without", w.testOdd)
	t.Run("of other namespaces, and those that opt out, do not", w.testLeftAlone)
	t.Run("that ask for what cannot be are refused", w.testDenied)
	t.Run("of a namespace that asks are let through when it cannot be", w.testSkipped)
	t.Run("that a Service reaches by number are told of", w.testBypass)
	t.Run("are admitted while authorities and certificates change", w.testRotation)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ctrl.SetLogger(zap.New(zap.WriteTo(t.Output()), zap.UseDevMode(true)))
	plane, err := testenv.New()
	must(t, err)
	t.Cleanup(func() { must(t, plane.Stop()) })
	w := &world{config: plane.Config, warnings: &warnings{}, clock: &clock{}, address: testredis.FreeAddr(t)}
	config := rest.CopyConfig(plane.Config)
	config.WarningHandlerWithContext = w.warnings
	w.Client, err = client.New(config, client.Options{})
	must(t, err)

	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, plane.WriteKubeconfig(kubeconfig))
	if out, err := exec.CommandContext(t.Context(), plane.Kubectl, "--kubeconfig", kubeconfig,
		"apply", "--server-side", "--force-conflicts", "-k", "../../../config/default").CombinedOutput(); err != nil {
		t.Fatalf("install: %v\n%s", err, out)
	}
	_, port, err := net.SplitHostPort(w.address)
	must(t, err)
	number, err := strconv.ParseInt(port, 10, 32)
	must(t, err)
	must(t, plane.SendWebhooksHere(t.Context(), "tallyman-injector", int32(number)))

	// Two thirds of the first authority's life, a year and an hour of which the
	// hour is before now, were over 105 minutes ago.
	w.clock.set(-105*time.Minute - (365*24+1)*time.Hour/3*2 + time.Hour)
	w.startManager(t, int(number))
	testenv.Eventually(t, func() error {
		if len(w.bundle()) == 0 {
			return errors.New("there is no authority")
		}
		return nil
	})
	w.clock.set(-2 * time.Hour)
	testenv.Eventually(t, func() error { _, err := w.served(); return err })
	// The API server has to have heard of all of it.
	ns := w.namespace(t, enabled)
	testenv.Eventually(t, func() error { return w.Create(t.Context(), pod(ns, nil, httpPort), client.DryRunAll) })
	return w
}

// startManager starts what cmd/manager wires, with the rights of config/rbac.
func (w *world) startManager(t *testing.T, port int) {
	t.Helper()
	config := rest.CopyConfig(w.config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + home + ":tallyman-manager",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + home, "system:authenticated"},
	}
	authority := webhookcert.New(webhookcert.Options{
		Secret:        client.ObjectKey{Namespace: home, Name: "tallyman-webhook-ca"},
		Configuration: "tallyman-injector",
		Hosts:         []string{serviceName},
		Now:           w.clock.now,
		Interval:      20 * time.Millisecond,
	})
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  clientgoscheme.Scheme,
		Cache:   controller.CacheOptions(),
		Metrics: metricsserver.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{
			Host: "127.0.0.1", Port: port,
			TLSOpts: []func(*tls.Config){func(c *tls.Config) { c.GetCertificate = authority.GetCertificate }},
		}),
	})
	must(t, err)
	must(t, authority.Setup(mgr))
	must(t, webhookv1.Setup(mgr, inject.Config{
		Image: "tallyman/sidecar:v1", StoreSecret: "tallyman-store", Prefix: "tallyman",
	}, prometheus.NewRegistry()))

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-ended)
	})
}

// served checks the certificate as the API server does, over a new connection,
// and returns the authority that has signed it.
func (w *world) served() (*x509.Certificate, error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.bundle())
	conn, err := tls.Dial("tcp", w.address, &tls.Config{RootCAs: roots, ServerName: serviceName})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	chain := conn.ConnectionState().VerifiedChains[0]
	return chain[len(chain)-1], nil
}

func (w *world) bundle() []byte {
	var config admissionregistrationv1.MutatingWebhookConfiguration
	if err := w.Get(context.Background(), client.ObjectKey{Name: "tallyman-injector"}, &config); err != nil {
		return nil
	}
	return config.Webhooks[0].ClientConfig.CABundle
}

// namespace makes one with labels.
func (w *world) namespace(t *testing.T, labels map[string]string) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "shop-", Labels: labels}}
	must(t, w.Create(t.Context(), ns))
	return ns.Name
}

var (
	enabled = map[string]string{inject.NamespaceLabel: "enabled"}
	asking  = map[string]string{inject.PodLabel: "true", "app": "orders"}
)

// pod is one of an app, in a namespace with restricted Pod Security.
func pod(namespace string, labels map[string]string, ports ...corev1.ContainerPort) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "orders-", Labels: labels},
		Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "app", Image: "shop/orders", Ports: ports,
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
				ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
					HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(8080)},
				}},
			}},
		},
	}
}

var httpPort = corev1.ContainerPort{Name: "http", ContainerPort: 8080}

func hasSidecar(p *corev1.Pod) bool {
	return len(p.Spec.InitContainers) == 1 && p.Spec.InitContainers[0].Name == inject.Container &&
		p.Spec.InitContainers[0].Ports[0].Name == "http" && p.Spec.Containers[0].Ports[0].Name == "app-http" &&
		p.Labels[inject.VersionLabel] == "v1"
}

// The namespaces enforce restricted Pod Security: the API server itself says
// whether the sidecar keeps to it.
func (w *world) testInjected(t *testing.T) {
	restricted := map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
	optedIn := map[string]string{"pod-security.kubernetes.io/enforce": "restricted", inject.NamespaceLabel: "enabled"}
	for name, p := range map[string]*corev1.Pod{
		"by its own label":       pod(w.namespace(t, restricted), asking, httpPort),
		"by its namespace's":     pod(w.namespace(t, optedIn), nil, httpPort),
		"by both":                pod(w.namespace(t, optedIn), asking, httpPort),
		"in a namespace of none": pod(w.namespace(t, map[string]string{inject.NamespaceLabel: "sometimes"}), asking, httpPort),
	} {
		must(t, w.Create(t.Context(), p))
		if !hasSidecar(p) {
			t.Errorf("%s: the pod has no sidecar: %+v", name, p)
		}
	}
}

// The API server validates what comes out.
func (w *world) testOdd(t *testing.T) {
	always := new(corev1.ContainerRestartPolicyAlways)
	resources := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	hook := &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("http")}}
	for name, change := range map[string]func(*corev1.PodSpec){
		"resources of the pod": func(s *corev1.PodSpec) {
			s.Resources = &corev1.ResourceRequirements{Requests: resources("10m", "16Mi"), Limits: resources("100m", "32Mi")}
		},
		"resources of the pod and of its container, which take all": func(s *corev1.PodSpec) {
			s.Resources = &corev1.ResourceRequirements{Requests: resources("100m", "64Mi"), Limits: resources("100m", "64Mi")}
			s.Containers[0].Resources = *s.Resources
		},
		"a limit of the pod's memory alone": func(s *corev1.PodSpec) {
			s.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}}
		},
		"the longest name of a port": func(s *corev1.PodSpec) { s.Containers[0].Ports[0].Name = "a-1-b-2-c-3-d-4" },
		"a name that ends cut off":   func(s *corev1.PodSpec) { s.Containers[0].Ports[0].Name = "abcdefghij-k" },
		"a hostPort, and all of them": func(s *corev1.PodSpec) {
			s.Containers[0].Ports[0].HostPort = 65535
			s.Containers[0].Ports[0].ContainerPort = 65535
		},
		"a sidecar with the same port name": func(s *corev1.PodSpec) {
			s.InitContainers = []corev1.Container{{Name: "mesh", Image: "mesh", RestartPolicy: always, Ports: []corev1.ContainerPort{
				{Name: "http", ContainerPort: 12080}, {Name: "app-http", ContainerPort: 12081}, {Name: "tallyman-admin", ContainerPort: 12082},
			}}}
		},
		"hooks and no time to end": func(s *corev1.PodSpec) {
			s.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: hook, PreStop: hook}
			s.TerminationGracePeriodSeconds = new(int64(0))
		},
		"a probe by gRPC": func(s *corev1.PodSpec) {
			s.Containers[0].LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 8080}}}
		},
		"a user namespace": func(s *corev1.PodSpec) { s.HostUsers = new(false) },
		"a Job's policy":   func(s *corev1.PodSpec) { s.RestartPolicy = corev1.RestartPolicyNever },
	} {
		plain, asks := pod(w.namespace(t, nil), nil, httpPort), pod(w.namespace(t, nil), asking, httpPort)
		change(&plain.Spec)
		change(&asks.Spec)
		if err := w.Create(t.Context(), plain); err != nil {
			t.Fatalf("%s: not even without a sidecar: %v", name, err)
		}
		if err := w.Create(t.Context(), asks); err != nil || len(asks.Spec.InitContainers) != len(plain.Spec.InitContainers)+1 {
			t.Errorf("%s: %v: %+v", name, err, asks.Spec.InitContainers)
		}
	}
}

func (w *world) testLeftAlone(t *testing.T) {
	for name, p := range map[string]*corev1.Pod{
		"nobody asks":              pod(w.namespace(t, nil), nil, httpPort),
		"the pod opts out":         pod(w.namespace(t, enabled), map[string]string{inject.PodLabel: "false"}, httpPort),
		"the namespace forbids it": pod(w.namespace(t, map[string]string{inject.NamespaceLabel: "disabled"}), asking, httpPort),
		"the manager's own":        pod(home, asking, httpPort),
		"the cluster's own":        pod("kube-system", asking, httpPort),
	} {
		must(t, w.Create(t.Context(), p))
		if len(p.Spec.InitContainers) > 0 || p.Annotations[inject.ReasonAnnotation] != "" {
			t.Errorf("%s: the pod was changed: %+v", name, p)
		}
	}
}

func (w *world) testDenied(t *testing.T) {
	ns := w.namespace(t, enabled)
	faulty := pod(ns, asking, httpPort)
	faulty.Annotations = map[string]string{inject.MemoryAnnotation: "lots"}
	for want, p := range map[string]*corev1.Pod{
		`denied the request: annotation tallyman.dev/memory: must be a request or request/limit above 0, such as`: faulty,
		`denied the request: no container of the pod has a TCP port with a name: give the app's port a name`:      pod(ns, asking),
		`denied the request: label tallyman.dev/inject must be "true" or "false", not "yes"`:                      pod(ns, map[string]string{inject.PodLabel: "yes"}, httpPort),
	} {
		if err := w.Create(t.Context(), p); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("the refusal does not say %q: %v", want, err)
		}
	}
}

func (w *world) testSkipped(t *testing.T) {
	p := pod(w.namespace(t, enabled), nil)
	must(t, w.Create(t.Context(), p))
	const reason = "no container of the pod has a TCP port with a name"
	if got := p.Annotations[inject.ReasonAnnotation]; !strings.HasPrefix(got, reason) || len(p.Spec.InitContainers) > 0 {
		t.Errorf("the pod does not say why it has no sidecar: %+v", p.ObjectMeta)
	}
	if !w.warnings.has("the pod gets no Tallyman sidecar: " + reason) {
		t.Errorf("whoever created the pod was not warned: %q", w.warnings.text)
	}
}

func (w *world) testBypass(t *testing.T) {
	ns := w.namespace(t, enabled)
	service := func(name string, target intstr.IntOrString) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
			Spec: corev1.ServiceSpec{
				Selector: map[string]string{"app": "orders"}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: target}},
			},
		}
	}
	must(t, w.Create(t.Context(), service("by-number", intstr.FromInt32(8080))))
	must(t, w.Create(t.Context(), service("by-name", intstr.FromString("http"))))
	testenv.Eventually(t, func() error { // the webhook's cache has to have seen them
		if err := w.Create(t.Context(), pod(ns, asking, httpPort), client.DryRunAll); err != nil {
			return err
		}
		if !w.warnings.has("Service by-number leads past the Tallyman sidecar") {
			return errors.New("the Service by number is not warned of")
		}
		return nil
	})
	if notes := w.bypassed(t, ns); len(notes) > 0 {
		t.Errorf("a dry run leaves events: %q", notes)
	}
	must(t, w.Create(t.Context(), pod(ns, asking, httpPort)))
	testenv.Eventually(t, func() error {
		if !strings.Contains(w.bypassed(t, ns)["by-number"], "write targetPort: http") {
			return errors.New("there is no event about the Service")
		}
		return nil
	})
	if w.warnings.has("Service by-name") {
		t.Error("the Service by name is warned of, too")
	}
}

// bypassed is what events say of Services that lead past sidecars, by Service.
func (w *world) bypassed(t *testing.T, namespace string) map[string]string {
	t.Helper()
	var list eventsv1.EventList
	must(t, w.List(t.Context(), &list, client.InNamespace(namespace)))
	notes := map[string]string{}
	for _, e := range list.Items {
		if e.Reason == "SidecarBypassed" {
			notes[e.Regarding.Name] = e.Note
		}
	}
	return notes
}

// The API server keeps its own time, so that all certificates have to be valid
// now: the clock begins in the past.
func (w *world) testRotation(t *testing.T) {
	ns := w.namespace(t, enabled)
	ctx, cancel := context.WithCancel(t.Context())
	var admitted atomic.Int64
	failed := make(chan error, 1)
	go func() {
		defer close(failed)
		for ctx.Err() == nil {
			p := pod(ns, nil, httpPort)
			if err := w.Create(ctx, p); err == nil && !hasSidecar(p) {
				failed <- fmt.Errorf("pod %s has no sidecar", p.Name)
				return
			} else if err != nil && ctx.Err() == nil {
				failed <- err
				return
			}
			admitted.Add(1)
		}
	}()

	first, err := w.served()
	must(t, err)
	bundle := w.bundle()
	w.clock.set(-90 * time.Minute)
	testenv.Eventually(t, func() error {
		if now := w.bundle(); bytes.Equal(now, bundle) || !bytes.Contains(now, bundle) {
			return errors.New("the API server is not told to trust a second authority")
		}
		return nil
	})
	if signer, err := w.served(); err != nil || !signer.Equal(first) {
		t.Errorf("the new authority signs before it is known everywhere (%v)", err)
	}
	before := admitted.Load()
	w.clock.set(0)
	testenv.Eventually(t, func() error {
		if signer, err := w.served(); err != nil || signer.Equal(first) {
			return fmt.Errorf("the second authority does not sign: %w", err)
		}
		return nil
	})
	testenv.Eventually(t, func() error {
		if admitted.Load() < before+20 {
			return errors.New("too few pods were admitted meanwhile")
		}
		return nil
	})
	cancel()
	if err := <-failed; err != nil {
		t.Errorf("after %d pods: %v", admitted.Load(), err)
	}

	// An authority whose key is known to others is done away with at once, as
	// docs/injection.md says.
	second, err := w.served()
	must(t, err)
	must(t, w.Patch(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: home, Name: "tallyman-webhook-ca"}},
		client.RawPatch(types.JSONPatchType, []byte(`[{"op":"remove","path":"/data"}]`))))
	testenv.Eventually(t, func() error {
		if signer, err := w.served(); err != nil || signer.Equal(second) {
			return fmt.Errorf("the second authority still signs: %w", err)
		}
		return w.Create(t.Context(), pod(ns, nil, httpPort))
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
