package policy_test

import (
	"testing"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

func TestASelectorMeansWhatItMeansInKubernetes(t *testing.T) {
	expression := func(operator policy.SelectorOperator, values ...string) policy.Selector {
		return policy.Selector{MatchExpressions: []policy.Requirement{{Key: "app", Operator: operator, Values: values}}}
	}
	var (
		orders = map[string]string{"app": "orders", "tier": "backend"}
		carts  = map[string]string{"app": "carts"}
		empty  = map[string]string{"app": ""}
		none   = map[string]string(nil)
	)
	for name, tt := range map[string]struct {
		selector policy.Selector
		yes, no  []map[string]string
	}{
		"an empty selector chooses all": {
			selector: policy.Selector{}, yes: []map[string]string{orders, carts, empty, none}},
		"a label has the value": {
			selector: policy.Selector{MatchLabels: map[string]string{"app": "orders"}},
			yes:      []map[string]string{orders}, no: []map[string]string{carts, empty, none}},
		"an empty value is one": {
			selector: policy.Selector{MatchLabels: map[string]string{"app": ""}},
			yes:      []map[string]string{empty}, no: []map[string]string{orders, none}},
		"all labels": {
			selector: policy.Selector{MatchLabels: map[string]string{"app": "orders", "tier": "frontend"}},
			no:       []map[string]string{orders, carts, none}},
		"In": {
			selector: expression(policy.OpIn, "orders", "carts"),
			yes:      []map[string]string{orders, carts}, no: []map[string]string{empty, none}},
		"NotIn, which those without the label meet": {
			selector: expression(policy.OpNotIn, "orders"),
			yes:      []map[string]string{carts, empty, none}, no: []map[string]string{orders}},
		"Exists": {
			selector: expression(policy.OpExists),
			yes:      []map[string]string{orders, empty}, no: []map[string]string{none}},
		"DoesNotExist": {
			selector: expression(policy.OpDoesNotExist),
			yes:      []map[string]string{none}, no: []map[string]string{orders, empty}},
		"labels and expressions together": {
			selector: policy.Selector{
				MatchLabels:      map[string]string{"app": "orders"},
				MatchExpressions: []policy.Requirement{{Key: "tier", Operator: policy.OpExists}},
			},
			yes: []map[string]string{orders}, no: []map[string]string{carts, {"app": "orders"}}},
		"an unknown operator chooses nobody": {
			selector: expression("Equals", "orders"), no: []map[string]string{orders, none}},
	} {
		for _, labels := range tt.yes {
			if !tt.selector.Matches(labels) {
				t.Errorf("%s: %v is not chosen", name, labels)
			}
		}
		for _, labels := range tt.no {
			if tt.selector.Matches(labels) {
				t.Errorf("%s: %v is chosen", name, labels)
			}
		}
	}
}

func TestADefinitionSelectsWhatAnySelectorChooses(t *testing.T) {
	d := policy.Definition{Selectors: []policy.Selector{
		{MatchLabels: map[string]string{"app": "orders"}},
		{MatchLabels: map[string]string{"app": "carts"}},
	}}
	for app, want := range map[string]bool{"orders": true, "carts": true, "catalog": false} {
		if got := d.Selects(map[string]string{"app": app}); got != want {
			t.Errorf("%s is selected: %v", app, got)
		}
	}
	if (&policy.Definition{}).Selects(nil) {
		t.Error("a definition without selectors selects a pod")
	}
}
