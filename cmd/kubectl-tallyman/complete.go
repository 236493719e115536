package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/inject"
	"github.com/tallyman-dev/tallyman/internal/target"
)

// completePatience is for how long a user waits for proposals. There are none then.
const completePatience = 3 * time.Second

// proposals are what a cluster has for an argument.
type proposals func(ctx context.Context, c *cluster, args []string, toComplete string) ([]string, error)

// complete proposes an argument from the cluster: the first of these for the first
// argument, and so on.
func (o *clusterOptions) complete(all ...proposals) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(all) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c, err := o.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(command.Context(), completePatience)
		defer cancel()
		found, _ := all[len(args)](ctx, c, args, toComplete) // without an answer there are none
		found = slices.DeleteFunc(found, func(s string) bool { return !strings.HasPrefix(s, toComplete) })
		directive := cobra.ShellCompDirectiveNoFileComp
		if len(found) == 1 && strings.HasSuffix(found[0], "/") {
			directive |= cobra.ShellCompDirectiveNoSpace
		}
		return found, directive
	}
}

func proposePolicies(ctx context.Context, c *cluster, _ []string, _ string) (names []string, err error) {
	policies, err := c.policies(ctx, c.namespace)
	for i := range policies {
		names = append(names, policies[i].Name)
	}
	return names, err
}

func proposeLimits(ctx context.Context, c *cluster, args []string, _ string) (names []string, err error) {
	var p v1alpha1.RateLimitPolicy
	err = c.get(ctx, args[0], "policy", &p)
	for i := range p.Spec.Limits {
		names = append(names, p.Spec.Limits[i].Name)
	}
	return names, err
}

// proposeWorkloads proposes pods with a sidecar, and workloads of a kind once that is
// written.
func proposeWorkloads(ctx context.Context, c *cluster, _ []string, toComplete string) (names []string, err error) {
	kind, _, written := strings.Cut(toComplete, "/")
	if known := kindNames[strings.ToLower(kind)]; written && known != podKind {
		return c.proposeTargets(ctx, kind, known)
	}
	pods, err := c.pods(ctx, c.namespace)
	for i := range pods {
		if inject.HasSidecar(&pods[i]) {
			names = append(names, pods[i].Name)
		}
	}
	return append(names, "daemonset/", "deployment/", "service/", "statefulset/"), err
}

// proposeTargets are the objects of a kind, which the user has written in this way.
func (c *cluster) proposeTargets(ctx context.Context, written, kind string) (names []string, err error) {
	newObject, known := target.Kinds[kind]
	if !known {
		return nil, nil
	}
	gvk, err := apiutil.GVKForObject(newObject(), c.Scheme())
	if err != nil {
		return nil, err
	}
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	err = c.List(ctx, &list, client.InNamespace(c.namespace))
	for i := range list.Items {
		names = append(names, written+"/"+list.Items[i].Name)
	}
	return names, err
}

func proposeNamespaces(ctx context.Context, c *cluster, _ []string, _ string) (names []string, err error) {
	var list corev1.NamespaceList
	err = c.List(ctx, &list)
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, err
}

// completeFlags proposes values of the flags that all commands have which ask a cluster.
func (o *clusterOptions) completeFlags(c *cobra.Command) {
	namespaces := o.complete(proposeNamespaces)
	byCluster := func(c *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		return namespaces(c, nil, toComplete)
	}
	for _, name := range []string{"namespace", "system-namespace"} {
		if c.Flags().Lookup(name) != nil {
			_ = c.RegisterFlagCompletionFunc(name, byCluster) // it is there
		}
	}
	_ = c.RegisterFlagCompletionFunc("context", func(*cobra.Command, []string, string) (names []string, d cobra.ShellCompDirective) {
		config, err := o.kube.ToRawKubeConfigLoader().RawConfig()
		if err == nil {
			for name := range config.Contexts {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names, cobra.ShellCompDirectiveNoFileComp
	})
}
