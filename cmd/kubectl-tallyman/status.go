package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/operator"
	"github.com/tallyman-dev/tallyman/internal/view"
)

const statusLong = `Tell whether policies are enforced: their conditions, which generation each pod
enforces, as the sidecars say themselves, and whether the store answers the manager and
has the scripts on all its nodes.

What may not be read or asked is said, and the rest is shown.

The exit code is 0 when all policies are enforced by all pods that they select, 3 when
one is not, 1 when the policies could not be read, and 2 when an argument is not valid.`

const statusExample = `  # Is every pod enforcing?
  kubectl tallyman status

  # One policy, for a script
  kubectl tallyman status orders >/dev/null || echo "orders is not enforced"

  # All namespaces
  kubectl tallyman status -A`

// managerComponent is the label of the manager's pods.
const managerComponent = "app.kubernetes.io/component"

// statusOptions are the flags of status.
type statusOptions struct {
	cluster         *clusterOptions
	allNamespaces   bool
	systemNamespace string
	output          outputFormat
}

func newStatusCommand() *cobra.Command {
	o := statusOptions{cluster: newClusterOptions()}
	c := &cobra.Command{
		Use:     "status [POLICY]",
		Short:   "Tell whether policies are enforced by all pods",
		Long:    statusLong,
		Example: statusExample,
		Args:    cobra.MaximumNArgs(1),

		ValidArgsFunction: o.cluster.complete(proposePolicies),
		RunE: func(c *cobra.Command, args []string) error {
			return o.run(c.Context(), args, c.OutOrStdout())
		},
	}
	flags := c.Flags()
	flags.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "the policies of all namespaces")
	flags.StringVar(&o.systemNamespace, "system-namespace", "tallyman-system", "`namespace` of the manager")
	o.output.addTo(c)
	o.cluster.addTo(c)
	return c
}

func (o *statusOptions) run(ctx context.Context, args []string, stdout io.Writer) error {
	if o.allNamespaces && len(args) > 0 {
		return errors.New("a policy is of one namespace: write its name or --all-namespaces")
	}
	c, err := o.cluster.connect()
	if err != nil {
		return err
	}
	policies, err := o.policies(ctx, c, args)
	if err != nil {
		return err
	}
	adoption := c.adoption(ctx, o.namespace(c), policies)
	status := view.NewStatus(adoption.policies)
	status.Notes = append(status.Notes, adoption.notes...)
	if len(policies) == 0 && !o.allNamespaces {
		status.Notes = append(status.Notes, fmt.Sprintf("this is namespace %s: --namespace names another one, --all-namespaces is for all", c.namespace))
	}
	store, err := c.store(ctx, o.systemNamespace)
	if err != nil {
		status.Notes = append(status.Notes, fmt.Sprintf("the store's health is not known, which the manager tells: %v", err))
	}
	status.Store = store
	err = o.output.write(stdout, status, func(w io.Writer) error { return status.WriteText(w, styleOf(stdout)) })
	switch {
	case err != nil:
		return failure{err}
	case !status.Enforced():
		return errNo
	}
	return nil
}

// namespace is empty for all.
func (o *statusOptions) namespace(c *cluster) string {
	if o.allNamespaces {
		return ""
	}
	return c.namespace
}

func (o *statusOptions) policies(ctx context.Context, c *cluster, args []string) ([]v1alpha1.RateLimitPolicy, error) {
	if len(args) == 0 {
		return c.policies(ctx, o.namespace(c))
	}
	var p v1alpha1.RateLimitPolicy
	if err := c.get(ctx, args[0], "policy", &p); err != nil {
		return nil, err
	}
	return []v1alpha1.RateLimitPolicy{p}, nil
}

// store asks the manager about the store.
func (c *cluster) store(ctx context.Context, namespace string) (*operator.StoreHealth, error) {
	var managers corev1.PodList
	err := c.List(ctx, &managers, client.InNamespace(namespace), client.MatchingLabels{managerComponent: "manager"})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(managers.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	var first error
	for i := range managers.Items {
		pod := &managers.Items[i]
		if pod.Status.Phase != corev1.PodRunning {
			continue
		}
		health, err := c.askStore(ctx, pod)
		if err == nil {
			return &health, nil
		}
		first = cmp.Or(first, fmt.Errorf("pod %s: %w", pod.Name, err))
	}
	if first != nil {
		return nil, first
	}
	return nil, fmt.Errorf("no pod of namespace %s with the label %s=manager is running", namespace, managerComponent)
}

func (c *cluster) askStore(ctx context.Context, pod *corev1.Pod) (operator.StoreHealth, error) {
	manager, err := c.forward.Client(pod.Namespace, pod.Name, operator.ManagerPort)
	if err != nil {
		return operator.StoreHealth{}, err
	}
	defer manager.Close()
	ctx, cancel := asking(ctx)
	defer cancel()
	return manager.Store(ctx)
}
