// Command manager is the operator: it turns RateLimitPolicy objects into
// definitions in Redis and writes down in their statuses what has become of them.
// Told which image the sidecar has, it also puts that into pods.
// See --help.
package main

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"time"

	"github.com/redis/go-redis/v9/logging"
	_ "golang.org/x/crypto/x509roots/fallback" // an image has no certificates of its own
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/controller"
	"github.com/tallyman-dev/tallyman/internal/limiter"
	"github.com/tallyman-dev/tallyman/internal/store"
)

// gcPercent has the heap collected at one and a half times of what is in use, where Go's
// default is twice. The manager's is large, a cache of the cluster, and grows slowly: it
// needs a third less, for some percent of a core.
const gcPercent = 50

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	o, err := parse()
	if err == nil {
		err = run(o)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "manager:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&o.log)))
	logging.Disable() // go-redis's own log; its errors reach us, and are logged
	redisClient, err := store.Connect(store.ConnectOptions{
		URL: o.storeURL, Username: os.Getenv("TALLYMAN_STORE_USERNAME"), Password: os.Getenv("TALLYMAN_STORE_PASSWORD"),
		TLS: o.tls,
	})
	if err != nil {
		return err
	}
	defer redisClient.Close()
	injection, err := newInjection(o)
	if err != nil {
		return err
	}
	mgr, err := newManager(o, injection)
	if err != nil {
		return err
	}
	definitions, scripts := store.New(redisClient, o.prefix), store.Scripts()
	maps.Copy(scripts, limiter.Scripts())
	err = controller.Setup(mgr, controller.Options{
		Store:    definitions,
		Scripts:  scripts,
		Resync:   o.resync,
		Registry: metrics.Registry,
	})
	if injection != nil {
		err = errors.Join(err, injection.setup(mgr))
	}
	err = errors.Join(err, serveOperatorAPI(mgr, definitions, scripts, o.operatorAddress))
	// +kubebuilder:scaffold:builder
	if err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}

func newManager(o options, i *injection) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	// +kubebuilder:scaffold:scheme
	serving := metricsserver.Options{BindAddress: o.metricsAddress, SecureServing: o.metricsSecure}
	if o.metricsSecure {
		serving.FilterProvider = filters.WithAuthenticationAndAuthorization
	}
	var webhooks webhook.Server // none is started if nobody asks for it
	if i != nil {
		webhooks = i.server
	}
	restConfig, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	mgr, err := ctrl.NewManager(restConfig, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         controller.CacheOptions(),
		Metrics:                       serving,
		WebhookServer:                 webhooks,
		HealthProbeBindAddress:        o.healthAddress,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              "manager.tallyman.dev",
		LeaderElectionNamespace:       o.leaseNamespace,
		LeaderElectionReleaseOnCancel: true, // nothing is written after the manager has stopped
		Controller:                    config.Controller{ReconciliationTimeout: 30 * time.Second},
	})
	if err != nil {
		return nil, fmt.Errorf("set up the manager: %w", err)
	}
	// Ready also while Redis is down: that is told by conditions and metrics, and
	// a restart would not mend it.
	return mgr, errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping))
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
