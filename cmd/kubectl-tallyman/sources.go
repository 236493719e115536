package main

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/target"
	"github.com/tallyman-dev/tallyman/internal/view"
)

// policies are those of a namespace, or with an empty one of all.
func (c *cluster) policies(ctx context.Context, namespace string) ([]v1alpha1.RateLimitPolicy, error) {
	var policies []v1alpha1.RateLimitPolicy
	var page v1alpha1.RateLimitPolicyList
	for {
		err := c.List(ctx, &page, client.InNamespace(namespace), client.Limit(pageSize), client.Continue(page.Continue))
		if err != nil {
			return nil, failure{fmt.Errorf("list policies: %w", err)}
		}
		policies = append(policies, page.Items...)
		if page.Continue == "" {
			return policies, nil
		}
	}
}

// targetRef is a target of policies in a namespace.
type targetRef struct {
	namespace string
	policy.TargetRef
}

// selection finds the pods of policies. It reads each target once.
type selection struct {
	reader  client.Reader
	targets map[targetRef]*policy.Selector
	// unread has why targets could not be read.
	unread map[targetRef]error
}

func newSelection(r client.Reader) *selection {
	return &selection{reader: r, targets: map[targetRef]*policy.Selector{}, unread: map[targetRef]error{}}
}

// of says whether a policy selects pods of its namespace with these labels, and by what.
func (s *selection) of(ctx context.Context, p *v1alpha1.RateLimitPolicy, labels map[string]string) (source view.Source, selects bool) {
	source.Policy = p
	if selector := target.Selector(p.Spec.Selector); selector != nil {
		return source, selector.Matches(labels)
	}
	for _, ref := range p.Spec.TargetRefs {
		selector, err := s.target(ctx, targetRef{p.Namespace, policy.TargetRef{Kind: ref.Kind, Name: ref.Name}})
		if err != nil {
			source.Unsure = true
		}
		if err != nil || selector != nil && selector.Matches(labels) {
			source.SelectedBy = append(source.SelectedBy, ref.Kind+" "+ref.Name)
		}
	}
	return source, len(source.SelectedBy) > 0
}

func (s *selection) target(ctx context.Context, ref targetRef) (*policy.Selector, error) {
	if err := s.unread[ref]; err != nil {
		return nil, err
	}
	selector, read := s.targets[ref]
	newObject, known := target.Kinds[ref.Kind]
	if read || !known {
		return selector, nil
	}
	object := newObject()
	err := s.reader.Get(ctx, client.ObjectKey{Namespace: ref.namespace, Name: ref.Name}, object)
	switch {
	case apierrors.IsNotFound(err): // it selects nothing
	case err != nil:
		s.unread[ref] = err
		return nil, err
	default:
		selector = target.PodSelector(object)
	}
	s.targets[ref] = selector
	return selector, nil
}
