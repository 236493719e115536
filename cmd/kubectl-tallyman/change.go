package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/operator"
	"github.com/tallyman-dev/tallyman/internal/reach"
	"github.com/tallyman-dev/tallyman/internal/view"
)

const resetLong = `Empty a counter: its client has the whole limit again. All pods count together, so
that it does not matter which one is asked; any pod is that enforces the policy.

A limit that counts by something has a counter for each key: --key names it, once for
each part of the limit's key, in the order of the policy. explain tells the key of a
request.

It is confirmed on a terminal, and an event on the policy tells of it, with the
counter's name in Redis, in which values are hashes.

The exit code is 0, 1 when it could not be done or was not confirmed, and 2 when an
argument is not valid.`

const resetExample = `  # Alice has used up her limit, for a good reason
  kubectl tallyman reset orders per-client --key alice

  # A limit that counts by client address and path
  kubectl tallyman reset orders per-path --key 203.0.113.9 --key /v1/orders

  # A limit without a key, from a script
  kubectl tallyman reset orders total --yes`

const refundLong = `Give units back to a counter, at most as many as were used. Otherwise it is as reset.

The exit code is 0, 1 when it could not be done or was not confirmed, and 2 when an
argument is not valid.`

const refundExample = `  # Our fault: ten of Alice's requests were answered by errors
  kubectl tallyman refund orders per-client 10 --key alice`

// changeKind is what is done to a counter.
type changeKind struct {
	action, reason string // of the event
	ask            func(*reach.Client, context.Context, operator.Change) (operator.Changed, error)
}

var (
	resetting = changeKind{"ResetCounter", "CounterReset", (*reach.Client).Reset}
	refunding = changeKind{"RefundCounter", "CounterRefunded", (*reach.Client).Refund}
)

// changeOptions are the flags of reset and refund.
type changeOptions struct {
	kind    changeKind
	cluster *clusterOptions
	sidecar string
	keys    []string
	confirm confirmation
	output  outputFormat
}

func newResetCommand() *cobra.Command {
	o := changeOptions{kind: resetting, cluster: newClusterOptions()}
	c := &cobra.Command{
		Use: "reset POLICY LIMIT", Short: "Empty a counter", Long: resetLong, Example: resetExample, Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			return o.run(c, operator.Change{Policy: args[0], Limit: args[1], Key: o.keys})
		},
	}
	o.addTo(c)
	return c
}

func newRefundCommand() *cobra.Command {
	o := changeOptions{kind: refunding, cluster: newClusterOptions()}
	c := &cobra.Command{
		Use: "refund POLICY LIMIT UNITS", Short: "Give units back to a counter", Long: refundLong, Example: refundExample,
		Args: cobra.ExactArgs(3),
		RunE: func(c *cobra.Command, args []string) error {
			units, err := strconv.ParseInt(args[2], 10, 64)
			if err != nil || units < 1 {
				return fmt.Errorf("UNITS is %.40q: write a number of 1 or more", args[2])
			}
			return o.run(c, operator.Change{Policy: args[0], Limit: args[1], Key: o.keys, Units: units})
		},
	}
	o.addTo(c)
	return c
}

func (o *changeOptions) addTo(c *cobra.Command) {
	c.Flags().StringArrayVar(&o.keys, "key", nil, "`value` of a part of the limit's key; once for each part, in their order")
	sidecarFlag(c, &o.sidecar)
	o.confirm.addTo(c)
	o.output.addTo(c)
	o.cluster.addTo(c)
	c.ValidArgsFunction = o.cluster.complete(proposePolicies, proposeLimits)
}

func (o *changeOptions) run(c *cobra.Command, change operator.Change) error {
	ctx, stderr := c.Context(), c.ErrOrStderr()
	if err := checkText("--key", change.Key...); err != nil {
		return err
	}
	if err := o.confirm.check(c.InOrStdin()); err != nil {
		return err
	}
	subject, err := o.find(ctx, change)
	if err != nil {
		return err
	}
	goOn, err := o.confirm.confirm(subject.question(change), c.InOrStdin(), stderr)
	if !goOn {
		return err
	}
	changed, err := subject.change(ctx, o.kind, change)
	if err != nil {
		return failure{err}
	}
	if subject.cluster != nil {
		note := fmt.Sprintf("Limit %s: %s; the counter is %s", change.Limit, done(change, changed), changed.RedisKey)
		subject.cluster.record(ctx, subject.policy, o.kind.action, o.kind.reason, note, stderr)
	}
	err = o.output.write(c.OutOrStdout(), changed, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s: %d left now\ncounter: %s\n", done(change, changed), changed.Remaining, view.Lines(changed.RedisKey))
		return err
	})
	if err != nil {
		return failure{err}
	}
	return nil
}

// done says what was done.
func done(change operator.Change, changed operator.Changed) string {
	if change.Units == 0 {
		return "the counter was reset"
	}
	return fmt.Sprintf("%s given back", view.Count(int(changed.Units), "unit"))
}

// changeSubject is whose counter is changed. Outside of a cluster there is a URL only.
type changeSubject struct {
	url     string
	cluster *cluster
	policy  *v1alpha1.RateLimitPolicy
	pods    []corev1.Pod
	// parts says that each pod has a counter of its own.
	parts bool
}

// find finds the policy and its pods, and checks what can be checked before a sidecar
// is asked.
func (o *changeOptions) find(ctx context.Context, change operator.Change) (*changeSubject, error) {
	if o.sidecar != "" {
		return &changeSubject{url: o.sidecar}, nil
	}
	c, err := o.cluster.connect()
	if err != nil {
		return nil, err
	}
	s := &changeSubject{cluster: c, policy: &v1alpha1.RateLimitPolicy{}}
	if err := c.get(ctx, change.Policy, "policy", s.policy); err != nil {
		return nil, err
	}
	_, limit, err := findLimit(s.policy, change.Limit)
	if err != nil {
		return nil, err
	}
	if err := checkKey(limit, change.Key); err != nil {
		return nil, err
	}
	s.parts = limit.Distribution.Mode == "Split"
	pods, err := c.pods(ctx, c.namespace)
	if err != nil {
		return nil, err
	}
	selection := newSelection(c)
	for i := range pods {
		if _, selects := selection.of(ctx, s.policy, pods[i].Labels); selects {
			s.pods = append(s.pods, pods[i])
		}
	}
	if len(s.pods) == 0 {
		return nil, failure{fmt.Errorf("policy %s selects no live pod, and so there is no sidecar to ask", change.Policy)}
	}
	return s, nil
}

// findLimit is a limit of a policy, and its place.
func findLimit(p *v1alpha1.RateLimitPolicy, name string) (int, *v1alpha1.Limit, error) {
	var names []string
	for i := range p.Spec.Limits {
		if p.Spec.Limits[i].Name == name {
			return i, &p.Spec.Limits[i], nil
		}
		names = append(names, p.Spec.Limits[i].Name)
	}
	return 0, nil, failure{fmt.Errorf("policy %s has no limit %q, but %s", p.Name, name, strings.Join(names, ", "))}
}

// checkKey checks that there is a value for each part of a key.
func checkKey(l *v1alpha1.Limit, key []string) error {
	parts := make([]string, len(l.Key))
	for i := range l.Key {
		parts[i] = view.KeyPart(&l.Key[i])
	}
	switch {
	case len(key) == len(parts):
		return nil
	case len(parts) == 0:
		return fmt.Errorf("limit %s has one counter for all: write no --key", l.Name)
	default:
		return fmt.Errorf("limit %s counts by %s: write --key %s, in this order",
			l.Name, strings.Join(parts, " and "), times(len(parts)))
	}
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// question is what is going to be done.
func (s *changeSubject) question(change operator.Change) string {
	what := "Reset the counter"
	if change.Units > 0 {
		what = fmt.Sprintf("Give %s back to the counter", view.Count(int(change.Units), "unit"))
	}
	what += fmt.Sprintf(" of limit %s of policy %s", change.Limit, change.Policy)
	if s.policy != nil {
		what += " in namespace " + s.policy.Namespace
	}
	if len(change.Key) > 0 {
		what += fmt.Sprintf(" for key %q", change.Key)
	}
	return what
}

// maxTries is how many pods are tried that do not answer.
const maxTries = 3

// change does it where the counter is: in one place, or to reset it, in all of them.
func (s *changeSubject) change(ctx context.Context, kind changeKind, change operator.Change) (changed operator.Changed, err error) {
	if s.cluster == nil {
		sidecar, err := reach.NewClient(s.url)
		if err != nil {
			return changed, err
		}
		return askToChange(ctx, sidecar, kind, change)
	}
	if s.parts && change.Units == 0 {
		return s.changeAll(ctx, kind, change)
	}
	return s.changeAny(ctx, kind, change)
}

// changeAll asks every pod. What is left is then the sum.
func (s *changeSubject) changeAll(ctx context.Context, kind changeKind, change operator.Change) (all operator.Changed, err error) {
	f := newFleet(ctx, s.cluster, s.pods)
	defer f.close()
	answers := askAll(ctx, f, func(ctx context.Context, c *reach.Client) (operator.Changed, error) {
		return kind.ask(c, ctx, change)
	})
	var errs []error
	for _, a := range answers {
		if a.err != nil {
			errs = append(errs, fmt.Errorf("pod %s: %w", a.pod, a.err))
			continue
		}
		all.RedisKey, all.Remaining = a.answer.RedisKey, all.Remaining+a.answer.Remaining
	}
	if len(errs) > 0 {
		err = fmt.Errorf("done in %d of %s, and not in all: %w", len(answers)-len(errs), view.Count(len(answers), "pod"), errors.Join(errs...))
	}
	return all, err
}

// changeAny asks a pod, and another one if that cannot be asked or does not know the
// limit.
func (s *changeSubject) changeAny(ctx context.Context, kind changeKind, change operator.Change) (changed operator.Changed, err error) {
	tries := 0
	for i := range s.pods {
		var sidecar *reach.Client
		sidecar, err = s.cluster.sidecar(ctx, &s.pods[i])
		if err == nil {
			tries++
			changed, err = askToChange(ctx, sidecar, kind, change)
		} else {
			err = &reach.Unreached{Cause: err}
		}
		switch {
		case err == nil:
			return changed, nil
		case !isUndone(err) || tries == maxTries:
			return changed, fmt.Errorf("pod %s: %w", s.pods[i].Name, err)
		}
	}
	return changed, fmt.Errorf("none of %s could be asked, the last since %w", view.Count(len(s.pods), "pod"), err)
}

// isUndone says whether another pod may do what this one has certainly not done.
func isUndone(err error) bool {
	refusal, refused := errors.AsType[*reach.Refusal](err)
	return refused && refusal.Status == http.StatusNotFound || errors.As(err, new(*reach.Unreached))
}

func askToChange(ctx context.Context, sidecar *reach.Client, kind changeKind, change operator.Change) (operator.Changed, error) {
	defer sidecar.Close()
	ctx, cancel := asking(ctx)
	defer cancel()
	return kind.ask(sidecar, ctx, change)
}
