package webhookcert

import (
	"context"
	"errors"
	"fmt"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Both objects come with our manifests, and a name can restrict all but a
// create: so there is no right to create a Secret, nor to read any other.
//
// +kubebuilder:rbac:groups="",resources=secrets,resourceNames=tallyman-webhook-ca,verbs=get;update,namespace=system
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=tallyman-injector,verbs=get;update

const (
	defaultInterval = 15 * time.Second
	// retry is for when something is missing, such as at the first start.
	retry = time.Second
)

// Setup adds the authority to a manager: every replica renews its certificate,
// and the leader keeps the authorities.
func (a *Authority) Setup(mgr ctrl.Manager) (err error) {
	// Not the manager's: that one would cache, and need to list, all Secrets.
	a.client, err = client.New(mgr.GetConfig(), client.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
	})
	if err != nil {
		return fmt.Errorf("make a client for the webhooks' authorities: %w", err)
	}
	return errors.Join(
		mgr.Add(loop{pass: a.Renew, interval: a.options.Interval}),
		mgr.Add(loop{pass: a.Keep, interval: a.options.Interval, leader: true}),
	)
}

// loop is a manager's Runnable that passes again and again.
type loop struct {
	pass     func(context.Context) error
	interval time.Duration
	leader   bool
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (l loop) NeedLeaderElection() bool { return l.leader }

// Start implements manager.Runnable.
func (l loop) Start(ctx context.Context) error {
	for pause := retry; ; {
		switch err := l.pass(ctx); {
		case err == nil:
			pause = l.interval
		case ctx.Err() != nil:
		case errors.Is(err, errNoAuthority):
			pause = retry
		default:
			pause = max(retry, min(2*pause, l.interval))
			log.FromContext(ctx).Error(err, "Could not maintain the webhooks' certificates")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}
