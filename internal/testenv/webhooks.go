package testenv

import (
	"context"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// SendWebhooksHere has the API server call the webhooks of a
// MutatingWebhookConfiguration at a port of this machine. There is no network
// that leads to Services here: theirs become names for localhost. For TLS the
// webhooks go on to have the Service's name, as in a cluster.
func (c *ControlPlane) SendWebhooksHere(ctx context.Context, configuration string, port int32) error {
	admin, err := client.New(c.Config, client.Options{})
	if err != nil {
		return err
	}
	var config admissionregistrationv1.MutatingWebhookConfiguration
	if err := admin.Get(ctx, client.ObjectKey{Name: configuration}, &config); err != nil {
		return err
	}
	for i := range config.Webhooks {
		ref := config.Webhooks[i].ClientConfig.Service
		ref.Port = &port
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
		}
		if err := client.IgnoreNotFound(admin.Delete(ctx, service.DeepCopy())); err != nil {
			return err
		}
		if err := admin.Create(ctx, service); err != nil {
			return fmt.Errorf("send webhook %s here: %w", config.Webhooks[i].Name, err)
		}
	}
	return admin.Update(ctx, &config)
}
