package webhookcert

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

const host = "tallyman-webhook.tallyman-system.svc"

// cluster has the two objects and a clock. Updates with an old version conflict,
// as those of an API server do.
type cluster struct {
	client.WithWatch
	now     time.Time
	updates int
	// afterGet is called once, after something was read.
	afterGet func()
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	c.WithWatch = fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "tallyman-system", Name: "ca"}},
		&admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "injector"},
			Webhooks:   []admissionregistrationv1.MutatingWebhook{{Name: "namespace"}, {Name: "pod"}},
		},
	).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			err := w.Get(ctx, key, o, options...)
			if after := c.afterGet; after != nil {
				c.afterGet = nil
				after()
			}
			return err
		},
		Update: func(ctx context.Context, w client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			c.updates++
			return w.Update(ctx, o, options...)
		},
	}).Build()
	return c
}

func (c *cluster) replica() *Authority {
	return &Authority{client: c, options: Options{
		Secret:        client.ObjectKey{Namespace: "tallyman-system", Name: "ca"},
		Configuration: "injector",
		Hosts:         []string{host},
		Now:           func() time.Time { return c.now },
	}}
}

// replace overwrites an object, as a person would.
func (c *cluster) replace(t *testing.T, o client.Object) {
	t.Helper()
	live := o.DeepCopyObject().(client.Object)
	must(t, c.Get(t.Context(), client.ObjectKeyFromObject(o), live))
	o.SetResourceVersion(live.GetResourceVersion())
	must(t, c.Update(t.Context(), o))
}

// bundle is what API servers are told to trust.
func (c *cluster) bundle(t *testing.T) []byte {
	t.Helper()
	var config admissionregistrationv1.MutatingWebhookConfiguration
	if err := c.Get(t.Context(), client.ObjectKey{Name: "injector"}, &config); err != nil {
		t.Fatal(err)
	}
	for _, w := range config.Webhooks {
		if !bytes.Equal(w.ClientConfig.CABundle, config.Webhooks[0].ClientConfig.CABundle) {
			t.Error("the webhooks have different bundles")
		}
	}
	return config.Webhooks[0].ClientConfig.CABundle
}

// verify checks a replica's certificate as the API server does.
func (c *cluster) verify(a *Authority, bundle []byte) error {
	served, err := a.GetCertificate(nil)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return errors.New("the bundle has no certificate")
	}
	_, err = served.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: c.now})
	return err
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Three years, in which one API server learns of a new bundle 50 minutes late and
// has a clock that is 50 minutes late too, and one replica looks once an hour.
func TestEveryCertificateIsTrustedThroughAllRotations(t *testing.T) {
	c := newCluster(t)
	leader, replica := c.replica(), c.replica()
	must(t, leader.Keep(t.Context()))
	must(t, replica.Renew(t.Context()))
	seen := map[string]bool{}
	lagging, published, publishedAt, renewedAt := c.bundle(t), c.bundle(t), c.now, c.now

	for end := c.now.AddDate(3, 0, 0); c.now.Before(end); {
		must(t, leader.Keep(t.Context()))
		must(t, leader.Renew(t.Context()))
		if now := c.bundle(t); !bytes.Equal(now, published) {
			published, publishedAt = now, c.now
		}
		if c.now.Sub(publishedAt) >= 50*time.Minute {
			lagging = published
		}
		if c.now.Sub(renewedAt) >= time.Hour {
			must(t, replica.Renew(t.Context()))
			renewedAt = c.now
		}
		for _, a := range []*Authority{leader, replica} {
			must(t, c.verify(a, published))
			must(t, c.verify(a, lagging))
			c.now = c.now.Add(-50 * time.Minute)
			must(t, c.verify(a, lagging))
			c.now = c.now.Add(50 * time.Minute)
			seen[string(a.serving.Load().parent.cert.Raw)] = true
		}
		if step := 10 * time.Minute; c.now.Sub(publishedAt) < 3*time.Hour {
			c.now = c.now.Add(step)
		} else {
			c.now = c.now.Add(5 * 24 * time.Hour)
		}
	}
	if len(seen) < 4 {
		t.Errorf("in three years %d authorities signed", len(seen))
	}
}

func TestAReplicaWaitsForTheLeader(t *testing.T) {
	c := newCluster(t)
	leader, replica := c.replica(), c.replica()
	if err := replica.Renew(t.Context()); !errors.Is(err, errNoAuthority) {
		t.Errorf("a replica without an authority has a certificate: %v", err)
	}
	if _, err := replica.GetCertificate(nil); !errors.Is(err, errNoAuthority) {
		t.Errorf("a handshake without a certificate says %v", err)
	}
	must(t, leader.Keep(t.Context()))
	must(t, replica.Renew(t.Context()))
	must(t, c.verify(replica, c.bundle(t)))
}

func TestOfTwoLeadersOneFollowsTheOther(t *testing.T) {
	c := newCluster(t)
	one, two := c.replica(), c.replica()
	c.afterGet = func() { must(t, two.Keep(t.Context())) }
	if err := one.Keep(t.Context()); !apierrors.IsConflict(err) {
		t.Fatalf("the slower leader has no conflict: %v", err)
	}
	before := c.bundle(t)
	must(t, one.Keep(t.Context()))
	if !bytes.Equal(before, c.bundle(t)) {
		t.Error("the slower leader has made an authority of its own")
	}
}

func TestAPassThatFindsAllWellWritesNothing(t *testing.T) {
	c := newCluster(t)
	a := c.replica()
	must(t, a.Keep(t.Context()))
	must(t, a.Renew(t.Context()))
	leaf, _ := a.GetCertificate(nil)
	c.updates = 0
	for range 3 {
		c.now = c.now.Add(time.Minute)
		must(t, a.Keep(t.Context()))
		must(t, a.Renew(t.Context()))
	}
	if again, _ := a.GetCertificate(nil); c.updates != 0 || again != leaf {
		t.Errorf("%d updates, and another certificate: %t", c.updates, again != leaf)
	}
}

func TestWhatIsLostIsMadeAgain(t *testing.T) {
	for name, lose := range map[string]client.Object{
		"the bundles": &admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "injector"},
			Webhooks:   []admissionregistrationv1.MutatingWebhook{{Name: "namespace"}, {Name: "pod"}},
		},
		"the authorities": &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "tallyman-system", Name: "ca"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			leader, replica := c.replica(), c.replica()
			must(t, leader.Keep(t.Context()))
			must(t, replica.Renew(t.Context()))
			c.replace(t, lose)
			must(t, leader.Keep(t.Context()))
			must(t, replica.Renew(t.Context()))
			must(t, c.verify(replica, c.bundle(t)))
		})
	}
}

// An expired authority signs nothing, and nobody trusts it for ever.
func TestAnExpiredAuthorityIsForgotten(t *testing.T) {
	c := newCluster(t)
	a := c.replica()
	must(t, a.Keep(t.Context()))
	first := c.bundle(t)
	c.now = c.now.AddDate(2, 0, 0)
	must(t, a.Keep(t.Context()))
	must(t, a.Renew(t.Context()))
	must(t, c.verify(a, c.bundle(t)))
	if bytes.Contains(c.bundle(t), first) {
		t.Error("the expired authority is still trusted")
	}
}

func TestWhatIsMissingOrBrokenIsToldWithItsRemedy(t *testing.T) {
	text, err := encode([]ca{testCA(t), testCA(t)})
	must(t, err)
	swapped := bytes.Join(bytes.SplitAfter(text, []byte("-----END CERTIFICATE-----\n"))[1:], nil)
	for name, data := range map[string][]byte{
		"no PEM": []byte("hunter2"), "a key first": swapped, "half of it": text[:len(text)/3],
	} {
		c := newCluster(t)
		c.replace(t, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "tallyman-system", Name: "ca"}, Data: map[string][]byte{secretKey: data},
		})
		if err := c.replica().Keep(t.Context()); err == nil || !strings.Contains(err.Error(), "without its key authorities.pem they are made anew") ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}

	c := newCluster(t)
	must(t, c.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "tallyman-system", Name: "ca"}}))
	if err := c.replica().Keep(t.Context()); err == nil || !strings.Contains(err.Error(), "create it, empty") {
		t.Errorf("no Secret: %v", err)
	}
}

func testCA(t testing.TB) ca {
	t.Helper()
	c, err := newCA(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A Secret can hold anything; what can be read can be written.
func FuzzAuthoritiesAreReadAsTheyWereWritten(f *testing.F) {
	text, err := encode([]ca{testCA(f), testCA(f)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text[:len(text)/2])
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := decode(text)
		if err != nil {
			return
		}
		again, err := encode(all)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := decode(again); err != nil || len(back) != len(all) || !bytes.Equal(bundle(back), bundle(all)) {
			t.Errorf("%d authorities became %d: %v", len(all), len(back), err)
		}
	})
}
