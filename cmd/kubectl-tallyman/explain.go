package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/tallyman-dev/tallyman/internal/operator"
	"github.com/tallyman-dev/tallyman/internal/reach"
	"github.com/tallyman-dev/tallyman/internal/view"
)

const explainLong = `Tell which limits a pod enforces, and where each of them comes from: the pod's
sidecar is asked, and of what selects the pod the API server.

With --request it is told what would become of a request that came to the pod now:
which limits apply to it and why, the key that it is counted by, what is left, and the
counter's name in Redis. Nothing is charged. The key is shown as it is.

Of a workload, the first pod is asked whose sidecar can be.

The exit code is 0, 1 when the cluster or the sidecar could not be asked, or the pod
has no sidecar, 2 when an argument is not valid, and 3 when the request would be
refused.`

const explainExample = `  # What does this pod enforce?
  kubectl tallyman explain orders-5d9c6c8b5-x2x7k

  # Why was this request refused?
  kubectl tallyman explain deployment/orders --request 'POST /v1/orders' -H 'X-Api-Key: alice' --from 203.0.113.9

  # A sidecar outside of a cluster
  kubectl tallyman explain --sidecar http://127.0.0.1:12082 --request 'GET /'`

// explainOptions are the flags of explain.
type explainOptions struct {
	cluster *clusterOptions
	sidecar string
	request string
	headers []string
	from    string
	output  outputFormat
}

func newExplainCommand() *cobra.Command {
	o := explainOptions{cluster: newClusterOptions()}
	c := &cobra.Command{
		Use:     "explain POD|KIND/NAME",
		Short:   "Tell which limits a pod enforces, and what they would do to a request",
		Long:    explainLong,
		Example: explainExample,
		Args:    cobra.MaximumNArgs(1),

		ValidArgsFunction: o.cluster.complete(proposeWorkloads),
		RunE: func(c *cobra.Command, args []string) error {
			return o.run(c.Context(), args, c.OutOrStdout())
		},
	}
	flags := c.Flags()
	flags.StringVar(&o.request, "request", "", "method and path of a `request`, such as 'POST /v1/orders?dry=1'")
	flags.StringArrayVarP(&o.headers, "header", "H", nil, "`header` of the request, such as 'X-Api-Key: alice'; can be given again")
	flags.StringVar(&o.from, "from", "", "`address` of the client that the request is from")
	sidecarFlag(c, &o.sidecar)
	o.output.addTo(c)
	o.cluster.addTo(c)
	return c
}

func (o *explainOptions) run(ctx context.Context, args []string, stdout io.Writer) error {
	request, err := o.parseRequest()
	if err != nil {
		return err
	}
	var explained view.Explained
	switch {
	case o.sidecar != "" && len(args) > 0:
		return errors.New("--sidecar names the sidecar: write no pod")
	case o.sidecar != "":
		explained, err = explainURL(ctx, o.sidecar, request)
	case len(args) == 0:
		return errors.New("write the name of a pod, or a workload such as deployment/orders")
	default:
		explained, err = o.explainPod(ctx, args[0], request)
	}
	if err != nil {
		return err
	}
	err = o.output.write(stdout, explained, func(w io.Writer) error { return explained.WriteText(w, styleOf(stdout)) })
	switch {
	case err != nil:
		return failure{err}
	case explained.Decision != nil && !explained.Decision.Allowed:
		return errNo
	}
	return nil
}

// parseRequest is nil without --request.
func (o *explainOptions) parseRequest() (*operator.Request, error) {
	if o.request == "" {
		if len(o.headers) > 0 || o.from != "" {
			return nil, errors.New("--header and --from describe a --request: write one, such as --request 'GET /'")
		}
		return nil, nil
	}
	if err := cmp.Or(checkText("--request", o.request), checkText("--header", o.headers...)); err != nil {
		return nil, err
	}
	r := &operator.Request{Method: http.MethodGet, ClientIP: o.from}
	switch words := strings.Fields(o.request); {
	case len(words) == 1 && strings.HasPrefix(words[0], "/"):
		r.Path = words[0]
	case len(words) == 2 && strings.HasPrefix(words[1], "/"):
		r.Method, r.Path = words[0], words[1]
	default:
		return nil, fmt.Errorf("--request is %.100q: write a method and a path, such as 'POST /v1/orders'", o.request)
	}
	for _, header := range o.headers {
		name, value, found := strings.Cut(header, ":")
		if name = strings.TrimSpace(name); !found || name == "" {
			return nil, fmt.Errorf("--header is %.100q: write a name and a value, such as 'X-Api-Key: alice'", header)
		}
		if value = strings.TrimSpace(value); strings.EqualFold(name, "Host") {
			r.Host = value
			continue
		}
		if r.Headers == nil {
			r.Headers = map[string][]string{}
		}
		name = http.CanonicalHeaderKey(name)
		r.Headers[name] = append(r.Headers[name], value)
	}
	if _, err := netip.ParseAddr(o.from); o.from != "" && err != nil {
		return nil, fmt.Errorf("--from is %.100q: write an IP address, such as 203.0.113.9", o.from)
	}
	return r, nil
}

// explainURL asks a sidecar outside of a cluster.
func explainURL(ctx context.Context, url string, request *operator.Request) (view.Explained, error) {
	sidecar, err := reach.NewClient(url)
	if err != nil {
		return view.Explained{}, fmt.Errorf("--sidecar: %w", err)
	}
	defer sidecar.Close()
	explanation, err := askToExplain(ctx, sidecar, request)
	if err != nil {
		return view.Explained{}, failure{fmt.Errorf("ask the sidecar at %s: %w", url, err)}
	}
	return view.Explain(explanation, request, nil), nil
}

func askToExplain(ctx context.Context, sidecar *reach.Client, request *operator.Request) (operator.Explanation, error) {
	ctx, cancel := asking(ctx)
	defer cancel()
	if request == nil {
		request = &operator.Request{} // any: what is in force is always told
	}
	return sidecar.Explain(ctx, *request)
}

func (o *explainOptions) explainPod(ctx context.Context, arg string, request *operator.Request) (out view.Explained, err error) {
	kind, name, err := parseWorkload(arg)
	if err != nil {
		return out, err
	}
	c, err := o.cluster.connect()
	if err != nil {
		return out, err
	}
	pods, err := c.podsOf(ctx, kind, name)
	if err != nil {
		return out, err
	}
	pod, sidecar, err := c.anySidecar(ctx, pods)
	if err != nil {
		return out, err
	}
	defer sidecar.Close()
	explanation, err := askToExplain(ctx, sidecar, request)
	if err != nil {
		return out, failure{fmt.Errorf("ask the sidecar of pod %s: %w", pod.Name, err)}
	}
	sources, notes := c.sourcesOf(ctx, pod)
	out = view.Explain(explanation, request, sources)
	out.Namespace, out.Pod = pod.Namespace, pod.Name
	out.Notes = append(out.Notes, notes...)
	return out, nil
}

// sourcesOf are the policies that select a pod, or may. Not being allowed to read them
// is a note: the sidecar has told what it enforces.
func (c *cluster) sourcesOf(ctx context.Context, pod *corev1.Pod) (sources []view.Source, notes []string) {
	policies, err := c.policies(ctx, pod.Namespace)
	if err != nil {
		return nil, []string{fmt.Sprintf("where limits come from is not told: %v", err)}
	}
	sources = []view.Source{}
	selection := newSelection(c)
	for i := range policies {
		if source, selects := selection.of(ctx, &policies[i], pod.Labels); selects {
			sources = append(sources, source)
		}
	}
	for ref, err := range selection.unread {
		notes = append(notes, fmt.Sprintf("whether %s %s selects the pod is not known: %v", ref.Kind, ref.Name, err))
	}
	slices.Sort(notes)
	return sources, notes
}
