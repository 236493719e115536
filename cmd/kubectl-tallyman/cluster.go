package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/reach"
	"github.com/tallyman-dev/tallyman/internal/view"
)

const (
	// askPatience bounds the wait for a sidecar or the manager. They answer within
	// the store's timeout, and a port-forward takes a moment.
	askPatience = 15 * time.Second
	// fieldManager is what the API server calls changes of this program.
	fieldManager = "kubectl-tallyman"
)

// clusterOptions are the flags by which kubectl finds a cluster.
type clusterOptions struct {
	kube *genericclioptions.ConfigFlags
}

func newClusterOptions() *clusterOptions {
	return &clusterOptions{kube: genericclioptions.NewConfigFlags(true)}
}

// addTo adds the flags, which --help shows apart from those of the command.
func (o *clusterOptions) addTo(c *cobra.Command) {
	own := c.Flags()
	before := map[string]bool{}
	own.VisitAll(func(f *pflag.Flag) { before[f.Name] = true })
	o.kube.AddFlags(own)
	own.VisitAll(func(f *pflag.Flag) {
		if !before[f.Name] && f.Name != "namespace" {
			_ = own.SetAnnotation(f.Name, kubeFlag, []string{"true"}) // it is there
		}
	})
	c.SetUsageTemplate(usageTemplate)
	o.completeFlags(c)
}

// cluster is a cluster and the namespace that is meant when none is named.
type cluster struct {
	client.Client
	forward   *reach.Forwarder
	namespace string
}

func (o *clusterOptions) connect() (*cluster, error) {
	quiet()
	namespace, _, err := o.kube.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, failure{err}
	}
	config, err := o.kube.ToRESTConfig()
	if err != nil {
		return nil, failure{err}
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, failure{err}
		}
	}
	config.QPS, config.Burst = 50, 100 // a question to each of many pods
	c, err := client.New(config, client.Options{Scheme: scheme, FieldOwner: fieldManager})
	if err != nil {
		return nil, failure{err}
	}
	forward, err := reach.NewForwarder(config)
	if err != nil {
		return nil, failure{err}
	}
	return &cluster{Client: c, forward: forward, namespace: namespace}, nil
}

// quiet ends the logs of libraries: what they have to say reaches us as errors.
func quiet() {
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())
}

// asking bounds the wait for an answer of a sidecar or the manager.
func asking(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, askPatience)
}

// styleOf is the style of what is written to w: with colors on a terminal only, and
// never where NO_COLOR is set (https://no-color.org).
func styleOf(w io.Writer) view.Style {
	return view.Style{Color: isTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

// sidecarFlag is of commands that can do without a cluster.
func sidecarFlag(c *cobra.Command, url *string) {
	c.Flags().StringVar(url, "sidecar", "", "`URL` of a sidecar's --operator-listen, such as http://127.0.0.1:12082: ask it, and no cluster")
}

// get reads an object of the namespace.
func (c *cluster) get(ctx context.Context, name, kind string, into client.Object) error {
	if err := c.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: name}, into); err != nil {
		return failure{fmt.Errorf("get %s %s of namespace %s: %w", kind, name, c.namespace, err)}
	}
	return nil
}
