package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/tallyman-dev/tallyman/internal/inject"
	webhookv1 "github.com/tallyman-dev/tallyman/internal/webhook/v1"
	"github.com/tallyman-dev/tallyman/internal/webhookcert"
)

// What config/default calls the objects of the webhook.
const (
	webhookService       = "tallyman-webhook"
	webhookSecret        = "tallyman-webhook-ca"
	webhookConfiguration = "tallyman-injector"
)

// namespaceFile is where a pod finds its namespace.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// injection puts sidecars into pods.
type injection struct {
	sidecar   inject.Config
	authority *webhookcert.Authority
	server    webhook.Server
}

// newInjection returns nil if there is no image to inject.
func newInjection(o options) (*injection, error) {
	if o.sidecar.Image == "" {
		return nil, nil
	}
	if err := checkSidecarStore(o.sidecar.StoreURL); err != nil {
		return nil, err
	}
	host, portText, err := net.SplitHostPort(o.webhookAddress)
	port, portErr := strconv.ParseUint(portText, 10, 16)
	if err != nil || portErr != nil || port == 0 {
		return nil, fmt.Errorf("--webhook-bind-address must be an address with a port, such as :9443, not %q", o.webhookAddress)
	}
	namespace := o.webhookNamespace
	if namespace == "" {
		text, err := os.ReadFile(namespaceFile)
		if err != nil {
			return nil, errors.New("--webhook-namespace is missing, and this is no pod that could tell: " +
				"give the namespace of the webhook's Service and Secret")
		}
		namespace = strings.TrimSpace(string(text))
	}
	authority := webhookcert.New(webhookcert.Options{
		Secret:        client.ObjectKey{Namespace: namespace, Name: webhookSecret},
		Configuration: webhookConfiguration,
		Hosts:         []string{webhookService + "." + namespace + ".svc"}, // what the API server asks for
	})
	sidecar := o.sidecar
	sidecar.Prefix = o.prefix
	return &injection{sidecar: sidecar, authority: authority, server: webhook.NewServer(webhook.Options{
		Host: host, Port: int(port),
		TLSOpts: []func(*tls.Config){func(c *tls.Config) { c.GetCertificate = authority.GetCertificate }},
	})}, nil
}

// checkSidecarStore keeps credentials out of pods' manifests, which more people
// may read than Secrets.
func checkSidecarStore(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme == "" || u.Host == "" && u.Path == "":
		return errors.New("--sidecar-store must be a URL such as redis://redis.tallyman-system:6379") // it may hold a password
	case u.User != nil || strings.Contains(u.RawQuery, "username") || strings.Contains(u.RawQuery, "password"):
		return errors.New("--sidecar-store must have no credentials, since pods show it: " +
			"put them into the Secret that --sidecar-store-secret names, in the pods' namespace")
	default:
		return nil
	}
}

// setup adds injection to a manager that was made with its server. A replica is
// ready when its server has a certificate, and not before.
func (i *injection) setup(mgr ctrl.Manager) error {
	return errors.Join(
		i.authority.Setup(mgr),
		webhookv1.Setup(mgr, i.sidecar, metrics.Registry),
		mgr.AddReadyzCheck("webhook", mgr.GetWebhookServer().StartedChecker()),
	)
}
