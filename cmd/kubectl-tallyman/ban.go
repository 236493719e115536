package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/ban"
	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/view"
)

const banLong = `Refuse all requests of a key: the policy's limit gets an override with action Deny, or
one that it has gets the key. unban takes it out again.

The limit has to count by exactly one attribute, such as a header or the client's
address; an address stands for the network that counts together with it. What the key
is can then be read in the policy: do not ban values that are secrets of others.

It is confirmed on a terminal, and an event on the policy tells of it, without the key.
Where the policy comes from a file or a repository, change it there, too: who applies it
again ends the ban.

The exit code is 0, also if the key was banned before, 1 when it could not be done or
was not confirmed, and 2 when an argument is not valid.`

const banExample = `  # Refuse everything from an address
  kubectl tallyman ban orders per-address --key 203.0.113.9

  # See what would be done
  kubectl tallyman ban orders per-client --key mallory --dry-run`

const unbanLong = `Take a key out of the overrides with action Deny of a policy's limit, as ban has put it
there. Overrides with other actions stay.

It is confirmed on a terminal, and an event on the policy tells of it, without the key.

The exit code is 0, also if the key was not banned, 1 when it could not be done or was
not confirmed, and 2 when an argument is not valid.`

const unbanExample = `  kubectl tallyman unban orders per-address --key 203.0.113.9`

// banKind is ban or unban.
type banKind struct {
	edit           func(spec *policy.Spec, place int, value string) ([]ban.Operation, error)
	action, reason string // of the event
	verb           string // of the question
	state          string // that the key is in then
	note           string // of the event
}

var (
	banning   = banKind{ban.Add, "BanKey", "KeyBanned", "Ban", "banned", "a key was banned"}
	unbanning = banKind{ban.Remove, "UnbanKey", "KeyUnbanned", "Unban", "not banned", "the ban of a key was ended"}
)

// banOptions are the flags of ban and unban.
type banOptions struct {
	kind    banKind
	cluster *clusterOptions
	keys    []string
	confirm confirmation
	output  outputFormat
}

func newBanCommand() *cobra.Command {
	return newEditCommand(banning, &cobra.Command{
		Use: "ban POLICY LIMIT --key VALUE", Short: "Refuse all requests of a key", Long: banLong, Example: banExample,
	})
}

func newUnbanCommand() *cobra.Command {
	return newEditCommand(unbanning, &cobra.Command{
		Use: "unban POLICY LIMIT --key VALUE", Short: "End the ban of a key", Long: unbanLong, Example: unbanExample,
	})
}

func newEditCommand(kind banKind, c *cobra.Command) *cobra.Command {
	o := banOptions{kind: kind, cluster: newClusterOptions()}
	c.Args = cobra.ExactArgs(2)
	c.RunE = func(c *cobra.Command, args []string) error { return o.run(c, args[0], args[1]) }
	c.Flags().StringArrayVar(&o.keys, "key", nil, "`value` of the limit's key")
	if err := c.MarkFlagRequired("key"); err != nil {
		panic(err) // there is no such flag: a fault of ours
	}
	o.confirm.addTo(c)
	o.output.addTo(c)
	o.cluster.addTo(c)
	c.ValidArgsFunction = o.cluster.complete(proposePolicies, proposeLimits)
	return c
}

// banned is what has become of a key.
type banned struct {
	Namespace string `json:"namespace"`
	Policy    string `json:"policy"`
	Limit     string `json:"limit"`
	Key       string `json:"key"`
	Banned    bool   `json:"banned"`
	// Changed says that it was not so before.
	Changed bool     `json:"changed"`
	Notes   []string `json:"notes,omitempty"`
}

func (o *banOptions) run(c *cobra.Command, policyName, limit string) error {
	ctx, stderr := c.Context(), c.ErrOrStderr()
	if len(o.keys) > 1 {
		return fmt.Errorf("--key is there %d times: write it once, and the command for each key", len(o.keys))
	}
	if err := checkText("--key", o.keys...); err != nil {
		return err
	}
	key := o.keys[0]
	if err := o.confirm.check(c.InOrStdin()); err != nil {
		return err
	}
	cluster, err := o.cluster.connect()
	if err != nil {
		return err
	}
	e := edit{cluster: cluster, kind: o.kind, policy: policyName, limit: limit, key: key}
	operations, err := e.plan(ctx)
	if err != nil {
		return err
	}
	if len(operations) > 0 {
		goOn, err := o.confirm.confirm(e.question(), c.InOrStdin(), stderr)
		if !goOn {
			return err
		}
		if err := e.apply(ctx); err != nil {
			return err
		}
		cluster.record(ctx, &e.object, o.kind.action, o.kind.reason,
			fmt.Sprintf("Limit %s: %s", limit, o.kind.note), stderr)
	}
	b := banned{
		Namespace: cluster.namespace, Policy: policyName, Limit: limit, Key: key,
		Banned: o.kind.state == banning.state, Changed: len(operations) > 0, Notes: notesAbout(&e.object),
	}
	if err := o.output.write(c.OutOrStdout(), b, func(w io.Writer) error { return b.writeText(w, o.kind.state) }); err != nil {
		return failure{err}
	}
	return nil
}

func (b *banned) writeText(w io.Writer, state string) error {
	before := ""
	if !b.Changed {
		before = ", and was so before"
	}
	_, err := fmt.Fprintf(w, "%q is %s by limit %s of policy %s%s\n", b.Key, state, b.Limit, b.Policy, before)
	for _, note := range b.Notes {
		if err == nil {
			_, err = fmt.Fprintf(w, "note: %s\n", note)
		}
	}
	return err
}

// edit is a change of one key in a policy.
type edit struct {
	cluster            *cluster
	kind               banKind
	policy, limit, key string
	// object is the policy as it was read or written last.
	object v1alpha1.RateLimitPolicy
}

// plan reads the policy, and returns what there is to do.
func (e *edit) plan(ctx context.Context) ([]ban.Operation, error) {
	e.object = v1alpha1.RateLimitPolicy{}
	if err := e.cluster.get(ctx, e.policy, "policy", &e.object); err != nil {
		return nil, err
	}
	place, _, err := findLimit(&e.object, e.limit)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(e.object.Spec)
	if err != nil {
		return nil, failure{err}
	}
	spec, err := policy.DecodeSpec(data)
	if err != nil {
		return nil, failure{fmt.Errorf("policy %s is not valid, or of a newer version: %w", e.policy, err)}
	}
	return e.kind.edit(&spec, place, e.key)
}

// conflicts is how often and when to try again what somebody else's write has thwarted:
// for some seconds, since several people ban at once when it burns, and the manager writes
// statuses after each of them.
var conflicts = wait.Backoff{Duration: 10 * time.Millisecond, Factor: 1.5, Jitter: 1, Steps: 14}

// apply does it, to the policy as it is then.
func (e *edit) apply(ctx context.Context) error {
	err := retry.RetryOnConflict(conflicts, func() error {
		operations, err := e.plan(ctx)
		if err != nil || len(operations) == 0 {
			return err
		}
		patch, err := json.Marshal(append(operations, ban.Guard(e.object.ResourceVersion)))
		if err != nil {
			return err
		}
		return e.cluster.Patch(ctx, &e.object, client.RawPatch(types.JSONPatchType, patch))
	})
	if err != nil {
		return failure{fmt.Errorf("change policy %s: %w", e.policy, err)}
	}
	return nil
}

func (e *edit) question() string {
	q := fmt.Sprintf("%s %q from limit %s of policy %s in namespace %s", e.kind.verb, e.key, e.limit, e.policy, e.object.Namespace)
	_, limit, err := findLimit(&e.object, e.limit)
	if err == nil && e.kind.state == banning.state && isSecret(&limit.Key[0]) {
		q += fmt.Sprintf(" (whoever reads the policy will see this value of %s)", view.KeyPart(&limit.Key[0]))
	}
	return q
}

// isSecret says whether values of a key may be secrets of clients.
func isSecret(p *v1alpha1.KeyPart) bool {
	return p.ClientIP == nil && p.Method == nil && p.Path == nil
}

// notesAbout tells what can keep a change from having effect.
func notesAbout(p *v1alpha1.RateLimitPolicy) (notes []string) {
	if others := otherManagers(p); len(others) > 0 {
		notes = append(notes, fmt.Sprintf("policy %s is written by %s, too, which may undo this: change it where the policy is from",
			p.Name, strings.Join(others, " and ")))
	}
	accepted := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAccepted)
	if accepted != nil && accepted.Status != metav1.ConditionTrue {
		notes = append(notes, fmt.Sprintf("policy %s is not accepted, and so not enforced (%s): %s", p.Name, accepted.Reason, accepted.Message))
	}
	return notes
}

// byHand are the field managers of people who write an object once.
var byHand = []string{fieldManager, "kubectl-create", "kubectl-edit", "kubectl-patch", "kubectl-replace"}

// otherManagers are those who write the spec again and again: appliers and owners.
func otherManagers(p *v1alpha1.RateLimitPolicy) (names []string) {
	for _, m := range p.ManagedFields {
		spec := m.FieldsV1 != nil && strings.Contains(m.FieldsV1.GetRawString(), `"f:spec"`)
		if spec && m.Subresource == "" && !slices.Contains(byHand, m.Manager) && !slices.Contains(names, m.Manager) {
			names = append(names, m.Manager)
		}
	}
	for _, owner := range p.OwnerReferences {
		names = append(names, owner.Kind+" "+owner.Name)
	}
	return names
}
