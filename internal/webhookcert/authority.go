package webhookcert

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// secretKey is where the authorities are in the Secret.
const secretKey = "authorities.pem"

// errNoAuthority is that of a replica that is ahead of the leader.
var errNoAuthority = errors.New("no replica has made an authority for the webhooks yet")

// Options say what the certificates are for.
type Options struct {
	// Secret is where the authorities are kept. It must exist, and may be empty.
	Secret client.ObjectKey
	// Configuration is the MutatingWebhookConfiguration whose webhooks are served.
	Configuration string
	// Hosts are the names and addresses by which the API server calls.
	Hosts []string
	// Now is the clock; time.Now if nil.
	Now func() time.Time
	// Interval is how soon it is noticed that a caBundle is lost or the Secret
	// replaced, at the price of two reads of single objects; 15 s if zero.
	Interval time.Duration
}

// Authority has the certificate of one replica. It is safe for concurrent use.
type Authority struct {
	options Options
	client  client.Client
	serving atomic.Pointer[serving]
}

// New returns an authority that has no certificate yet.
func New(o Options) *Authority {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Interval = cmp.Or(o.Interval, defaultInterval)
	return &Authority{options: o}
}

// serving is a certificate and the authority that signed it.
type serving struct {
	leaf   *tls.Certificate
	parent ca
}

// GetCertificate is for tls.Config.
func (a *Authority) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if s := a.serving.Load(); s != nil {
		return s.leaf, nil
	}
	return nil, errNoAuthority
}

// Renew gives this replica a certificate by the authority that signs now, unless
// it has a good one.
func (a *Authority) Renew(ctx context.Context) error {
	_, all, err := a.load(ctx)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return errNoAuthority
	}
	now := a.options.Now()
	parent := signer(all, now)
	if s := a.serving.Load(); s != nil && s.parent.cert.Equal(parent.cert) && !isDue(s.leaf.Leaf, now) {
		return nil
	}
	leaf, err := newLeaf(parent, a.options.Hosts, now)
	if err != nil {
		return err
	}
	a.serving.Store(&serving{leaf: leaf, parent: parent})
	log.FromContext(ctx).V(1).Info("Renewed the webhooks' certificate", "expires", leaf.Leaf.NotAfter)
	return nil
}

// Keep makes authorities and has the API server trust them. Only the leader may
// call it; two that do are told apart by the API server, and one has an error.
func (a *Authority) Keep(ctx context.Context) error {
	secret, all, err := a.load(ctx)
	if err != nil {
		return err
	}
	all, changed, err := maintain(all, a.options.Now())
	if err != nil {
		return err
	}
	if changed {
		if err := a.save(ctx, secret, all); err != nil {
			return err
		}
	}
	return a.publish(ctx, bundle(all))
}

func (a *Authority) load(ctx context.Context) (*corev1.Secret, []ca, error) {
	var secret corev1.Secret
	err := a.client.Get(ctx, a.options.Secret, &secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil, fmt.Errorf("the Secret %s, where the webhooks' authorities are kept, does not exist: create it, empty", a.options.Secret)
	case err != nil:
		return nil, nil, fmt.Errorf("read the webhooks' authorities: %w", err)
	}
	all, err := decode(secret.Data[secretKey])
	if err != nil {
		return nil, nil, fmt.Errorf("read the webhooks' authorities in Secret %s: %w; without its key %s they are made anew",
			a.options.Secret, err, secretKey)
	}
	return &secret, all, nil
}

func (a *Authority) save(ctx context.Context, secret *corev1.Secret, all []ca) error {
	text, err := encode(all)
	if err != nil {
		return err
	}
	secret.Data = map[string][]byte{secretKey: text}
	// With the version that was read: another leader's authorities are not lost.
	if err := a.client.Update(ctx, secret); err != nil {
		return fmt.Errorf("write the webhooks' authorities: %w", err)
	}
	log.FromContext(ctx).Info("Wrote the webhooks' authorities", "newestExpires", all[0].cert.NotAfter)
	return nil
}

// publish writes the bundle into all webhooks of the configuration that have
// another one.
func (a *Authority) publish(ctx context.Context, caBundle []byte) error {
	var config admissionregistrationv1.MutatingWebhookConfiguration
	if err := a.client.Get(ctx, client.ObjectKey{Name: a.options.Configuration}, &config); err != nil {
		return fmt.Errorf("read the webhooks' configuration: %w", err)
	}
	changed := false
	for i := range config.Webhooks {
		if c := &config.Webhooks[i].ClientConfig; !bytes.Equal(c.CABundle, caBundle) {
			c.CABundle, changed = caBundle, true
		}
	}
	if !changed {
		return nil
	}
	if err := a.client.Update(ctx, &config); err != nil {
		return fmt.Errorf("write the webhooks' caBundle: %w", err)
	}
	return nil
}
