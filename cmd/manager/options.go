package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/tallyman-dev/tallyman/internal/controller"
	"github.com/tallyman-dev/tallyman/internal/inject"
	"github.com/tallyman-dev/tallyman/internal/operator"
	"github.com/tallyman-dev/tallyman/internal/operator/guard"
	"github.com/tallyman-dev/tallyman/internal/store"
)

// options are what the flags and the environment say.
type options struct {
	storeURL, storeFile, prefix string
	tls                         store.TLSOptions
	metricsAddress              string
	metricsSecure               bool
	healthAddress               string
	operatorAddress             string
	leaderElect                 bool
	leaseNamespace              string
	resync                      time.Duration
	sidecar                     inject.Config
	sidecarEnv                  []string
	webhookAddress              string
	webhookNamespace            string
	log                         zap.Options
}

func parse() (options, error) {
	var o options
	showVersion := flag.Bool("version", false, "print the version and exit")
	flag.StringVar(&o.storeURL, "store", "", "`URL` of the Redis: redis://, rediss://, unix://, redis+cluster:// or redis+sentinel:// "+
		"(env TALLYMAN_STORE; credentials also from TALLYMAN_STORE_USERNAME and TALLYMAN_STORE_PASSWORD)")
	flag.StringVar(&o.storeFile, "store-file", "", "read the URL from this `file`, such as a mounted Secret")
	flag.StringVar(&o.tls.CAFile, "store-ca-file", "", "`file` with the certificates (PEM) to trust in a rediss:// store (env TALLYMAN_STORE_CA, their text; default: the system's)")
	flag.StringVar(&o.tls.CertFile, "store-cert-file", "", "`file` with the client's certificate (PEM) for the store, with --store-key-file")
	flag.StringVar(&o.tls.KeyFile, "store-key-file", "", "`file` with the key (PEM) of --store-cert-file")
	flag.StringVar(&o.tls.ServerName, "store-server-name", "", "`name` that the store's certificate must have (default the URL's host)")
	flag.StringVar(&o.prefix, "prefix", store.DefaultPrefix, "`prefix` of all keys in Redis; one Redis can serve several clusters")
	flag.StringVar(&o.metricsAddress, "metrics-bind-address", "127.0.0.1:8080", "`address` of /metrics; 0 turns it off")
	flag.BoolVar(&o.metricsSecure, "metrics-secure", false, "serve metrics over HTTPS, to those whom the API server authorizes")
	flag.StringVar(&o.healthAddress, "health-probe-bind-address", ":8081", "`address` of /healthz and /readyz; 0 turns it off")
	flag.StringVar(&o.operatorAddress, "operator-bind-address", fmt.Sprintf("127.0.0.1:%d", operator.ManagerPort), "loopback `address` where kubectl tallyman asks how the store is, "+
		"by way of a forwarded port; 0 turns it off")
	flag.BoolVar(&o.leaderElect, "leader-elect", false, "be one of several managers, of which one is active")
	flag.StringVar(&o.leaseNamespace, "leader-election-namespace", "", "`namespace` of the managers' lease (default that of the manager's pod)")
	flag.DurationVar(&o.resync, "resync", controller.DefaultResync, "how long a namespace is left alone when nothing happens in it; bounds how long a flushed Redis stays so")
	flag.StringVar(&o.sidecar.Image, "sidecar-image", "", "`image` of the sidecar that is put into pods; injection is off if it is empty")
	flag.StringVar(&o.sidecar.StoreURL, "sidecar-store", "", "`URL` of the Redis for sidecars, without credentials "+
		"(default: the key url of the Secret in their namespace)")
	flag.StringVar(&o.sidecar.StoreSecret, "sidecar-store-secret", "tallyman-store", "`name` of the Secret that sidecars take "+
		"the store's url, username and password from, in their own namespace")
	flag.Func("sidecar-env", "`variable` of OpenTelemetry for sidecars, as OTEL_EXPORTER_OTLP_ENDPOINT=http://collector.monitoring:4318; "+
		"can be given several times. Without any, sidecars do not trace", func(variable string) error {
		o.sidecarEnv = append(o.sidecarEnv, variable) // checked later: errors here would show it
		return nil
	})
	flag.StringVar(&o.webhookAddress, "webhook-bind-address", ":9443", "`address` where the API server asks about new pods")
	flag.StringVar(&o.webhookNamespace, "webhook-namespace", "", "`namespace` of the webhook's Service and Secret (default that of the manager's pod)")
	o.log.BindFlags(flag.CommandLine)
	flag.CommandLine.Init("manager", flag.ContinueOnError) // any mistake ends in main, with the same exit code
	if err := flag.CommandLine.Parse(os.Args[1:]); err != nil {
		return o, err
	}
	if *showVersion {
		fmt.Println("manager", version())
		os.Exit(0)
	}
	if flag.NArg() > 0 {
		// Which is not shown: after `--store= redis://…` it has a password.
		return o, fmt.Errorf("argument %d belongs to no flag (see --help)", len(os.Args)-flag.NArg())
	}
	return o, o.complete()
}

// parseTracing reads the --sidecar-env. Errors do not show what may be a secret.
func parseTracing(variables []string) (env []corev1.EnvVar, err error) {
	for _, text := range variables {
		name, value, found := strings.Cut(text, "=")
		switch {
		case !found || !strings.HasPrefix(name, "OTEL_"):
			return nil, errors.New("--sidecar-env must be a variable of OpenTelemetry and its value, such as OTEL_TRACES_SAMPLER=parentbased_always_off")
		case strings.HasSuffix(name, "_HEADERS"):
			return nil, errors.New("--sidecar-env must not be headers, which may have credentials, since pods show them: " +
				"let sidecars send to a collector in the cluster that has the credentials")
		}
		env = append(env, corev1.EnvVar{Name: name, Value: value})
	}
	return env, nil
}

// complete takes the store's URL from where it is.
func (o *options) complete() (err error) {
	if o.sidecar.Tracing, err = parseTracing(o.sidecarEnv); err != nil {
		return err
	}
	if o.storeFile != "" {
		if o.storeURL != "" {
			return errors.New("--store and --store-file say both where the store is: give one of them")
		}
		text, err := os.ReadFile(o.storeFile)
		if err != nil {
			return fmt.Errorf("--store-file: %w", err)
		}
		o.storeURL = strings.TrimSpace(string(text))
	}
	o.storeURL = cmp.Or(o.storeURL, os.Getenv("TALLYMAN_STORE"))
	if o.tls.CAFile == "" {
		o.tls.CA = os.Getenv("TALLYMAN_STORE_CA")
	}
	switch {
	case o.storeURL == "":
		return errors.New("--store is missing: give the URL of a Redis, such as redis://redis:6379 (or TALLYMAN_STORE, or --store-file)")
	case o.resync < time.Second:
		return errors.New("--resync must be 1s or more")
	case o.operatorAddress == "0":
		return nil
	}
	if err := guard.CheckAddress(o.operatorAddress); err != nil {
		return fmt.Errorf("--operator-bind-address %w", err)
	}
	return nil
}
