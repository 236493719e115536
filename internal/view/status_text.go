package view

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/operator"
)

// maxPods is how many pods are shown: those that do not enforce all come first.
const maxPods = 50

// WriteText shows a status: first the answer, and then what it is from.
func (s *Status) WriteText(w io.Writer, style Style) error {
	var b strings.Builder
	b.WriteString(s.summary(style))
	b.WriteString(s.outage(style))
	for _, t := range []*table{s.policies(), s.pods(), s.nodes()} {
		if len(t.rows) > 0 {
			b.WriteByte('\n')
			_ = t.write(&b, style) // it never fails
		}
	}
	if more := len(s.Pods) - maxPods; more > 0 {
		fmt.Fprintf(&b, "and %s more\n", Count(more, "pod"))
	}
	writeNotes(&b, s.Notes, style)
	_, err := io.WriteString(w, b.String())
	return err
}

func (s *Status) summary(style Style) string {
	var not []string
	for i := range s.Policies {
		if p := &s.Policies[i]; !p.Enforced {
			not = append(not, p.Policy)
		}
	}
	all := len(s.Policies)
	switch {
	case all == 0:
		return "There is no policy.\n"
	case len(not) == 0 && all == 1:
		return fmt.Sprintf("Policy %s %s by all its pods.\n", s.Policies[0].Policy, style.paint(green, "is enforced"))
	case len(not) == 0:
		return fmt.Sprintf("All %d policies %s by all their pods.\n", all, style.paint(green, "are enforced"))
	default:
		return fmt.Sprintf("%s by all pods: %s (%d of %s)\n",
			style.paint(red, "Not enforced"), strings.Join(not, ", "), len(not), Count(all, "policy"))
	}
}

// outage says that not all of the store answers, beside the pods that may well enforce
// what they have read.
func (s *Status) outage(style Style) string {
	if s.Store == nil {
		return ""
	}
	silent := 0
	for i := range s.Store.Nodes {
		if s.Store.Nodes[i].Error != "" {
			silent++
		}
	}
	what := message(s.Store.Error)
	switch {
	case s.Store.Error != "":
	case silent > 0:
		what = fmt.Sprintf("%d of %s", silent, Count(len(s.Store.Nodes), "node"))
	default:
		return ""
	}
	return fmt.Sprintf("%s (%s): pods that do not reach it either go by each limit's failurePolicy.\n",
		style.paint(red, "The store does not answer the manager"), what)
}

func (s *Status) policies() *table {
	t := &table{head: []string{"NAMESPACE", "POLICY", "GEN", "ACCEPTED", "PROGRAMMED", "ENFORCED", "PODS"}}
	for i := range s.Policies {
		p := &s.Policies[i]
		pods := text("-")
		if p.Pods != nil {
			pods.text = fmt.Sprintf("%d/%d", *p.Current, *p.Pods)
			if *p.Current < *p.Pods {
				pods.color = red
			}
		}
		t.add(text(p.Namespace), text(p.Policy), text(fmt.Sprint(p.Generation)),
			p.condition(v1alpha1.ConditionAccepted), p.condition(v1alpha1.ConditionProgrammed), p.condition(v1alpha1.ConditionEnforced), pods)
	}
	return t
}

func (p *PolicyStatus) condition(kind string) cell {
	at := slices.IndexFunc(p.Conditions, func(c ConditionStatus) bool { return c.Type == kind })
	switch {
	case at < 0:
		return text("-")
	case p.Conditions[at].Stale:
		return cell{p.Conditions[at].Status + " (stale)", yellow}
	case p.Conditions[at].Status == string(metav1.ConditionTrue):
		return cell{p.Conditions[at].Status, green}
	default:
		return cell{p.Conditions[at].Status, red}
	}
}

func (s *Status) pods() *table {
	t := &table{head: []string{"NAMESPACE", "POD", "SIDECAR", "ENFORCES"}}
	for i := range s.Pods[:min(len(s.Pods), maxPods)] {
		p := &s.Pods[i]
		t.add(text(p.Namespace), text(p.Pod), text(cmp.Or(clean(p.Sidecar), "-")), p.enforces())
	}
	return t
}

// enforces tells the generation of each policy.
func (p *PodStatus) enforces() cell {
	switch {
	case p.Error != "":
		return cell{message(p.Error), red}
	case !p.Told:
		return text("(not asked)")
	}
	c := cell{color: green}
	var parts []string
	for _, policy := range p.Policies {
		switch {
		case policy.Current:
			parts = append(parts, fmt.Sprintf("%s %d", policy.Policy, policy.Generation))
			continue
		case policy.Generation == 0:
			parts = append(parts, policy.Policy+" not")
		default:
			parts = append(parts, fmt.Sprintf("%s %d (behind)", policy.Policy, policy.Generation))
		}
		c.color = red
	}
	c.text = strings.Join(parts, ", ")
	return c
}

func (s *Status) nodes() *table {
	t := &table{head: []string{"STORE NODE", "PING", "SCRIPTS"}}
	if s.Store == nil {
		return t
	}
	for i := range s.Store.Nodes {
		t.add(nodeCells(&s.Store.Nodes[i])...)
	}
	return t
}

func nodeCells(n *operator.NodeHealth) []cell {
	if n.Error != "" {
		return []cell{text(n.Address), {"no answer: " + message(n.Error), red}, text("-")}
	}
	scripts := cell{fmt.Sprintf("all %d", n.Scripts), green}
	if len(n.MissingScripts) > 0 {
		scripts = cell{fmt.Sprintf("%d, without %s", n.Scripts, strings.Join(n.MissingScripts, ", ")), yellow}
	}
	latency := time.Duration(n.LatencyMicros) * time.Microsecond
	return []cell{text(n.Address), text(latency.String()), scripts}
}
