package main

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/inject"
	"github.com/tallyman-dev/tallyman/internal/operator"
	"github.com/tallyman-dev/tallyman/internal/reach"
	"github.com/tallyman-dev/tallyman/internal/view"
)

// adoption is who enforces policies.
type adoption struct {
	cluster   *cluster
	selection *selection
	policies  []view.Selected
	pods      []corev1.Pod     // that any of the policies selects
	states    []*view.PodState // theirs
	// notes are what could not be found out.
	notes []string
}

// adoption finds the pods of policies, and asks their sidecars what they enforce. With
// an empty namespace, the policies are of all.
func (c *cluster) adoption(ctx context.Context, namespace string, policies []v1alpha1.RateLimitPolicy) *adoption {
	a := &adoption{cluster: c, selection: newSelection(c), policies: make([]view.Selected, len(policies))}
	for i := range policies {
		a.policies[i].Policy = &policies[i]
	}
	if len(policies) == 0 {
		return a
	}
	pods, err := c.pods(ctx, namespace)
	if err != nil {
		for i := range a.policies {
			a.policies[i].Unsure = true
		}
		a.notes = []string{fmt.Sprintf("which pods are selected is not known: %v", err)}
		return a
	}
	for i := range pods {
		a.choose(ctx, &pods[i])
	}
	for ref, err := range a.selection.unread {
		a.notes = append(a.notes, fmt.Sprintf("which pods %s %s selects is not known: %v", ref.Kind, ref.Name, err))
	}
	slices.Sort(a.notes)
	a.ask(ctx)
	return a
}

// choose adds a pod to the policies that select it.
func (a *adoption) choose(ctx context.Context, pod *corev1.Pod) {
	state := &view.PodState{Namespace: pod.Namespace, Name: pod.Name, Version: pod.Labels[inject.VersionLabel]}
	selected := false
	for i := range a.policies {
		p := &a.policies[i]
		if p.Policy.Namespace != pod.Namespace {
			continue
		}
		source, selects := a.selection.of(ctx, p.Policy, pod.Labels)
		p.Unsure = p.Unsure || source.Unsure
		if selects && !source.Unsure {
			p.Pods = append(p.Pods, state)
			selected = true
		}
	}
	if selected {
		a.pods, a.states = append(a.pods, *pod), append(a.states, state)
	}
}

// ask fills in what the sidecars of the pods say that they enforce.
func (a *adoption) ask(ctx context.Context) {
	f := newFleet(ctx, a.cluster, a.pods)
	defer f.close()
	answers := askAll(ctx, f, func(ctx context.Context, c *reach.Client) (operator.Explanation, error) {
		return c.Explain(ctx, operator.Request{})
	})
	var forbidden error
	for i, answer := range answers {
		switch {
		case reach.IsForbidden(answer.err):
			forbidden = answer.err
		case answer.err != nil:
			a.states[i].Error = answer.err.Error()
		default:
			a.states[i].Generations = generations(answer.answer)
		}
	}
	if forbidden != nil {
		a.notes = append(a.notes, fmt.Sprintf("what sidecars say is not known: %v", forbidden))
	}
}

// generations are those that a sidecar enforces, by policy.
func generations(e operator.Explanation) map[string]int64 {
	all := map[string]int64{}
	for i := range e.Limits {
		all[e.Limits[i].Policy] = e.Limits[i].Generation
	}
	return all
}
