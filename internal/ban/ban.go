// Package ban edits a policy so that a key is denied, or is not any more. It is pure:
// what comes out are operations of a JSON patch.
package ban

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// Operation is one of a JSON patch (RFC 6902).
type Operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// override is what a ban adds.
type override struct {
	Keys   []string              `json:"keys"`
	Action policy.OverrideAction `json:"action"`
}

// Add denies a key of spec.limits[place]. There are no operations if it is denied
// already.
func Add(spec *policy.Spec, place int, value string) ([]Operation, error) {
	l := &spec.Limits[place]
	at, _, found, err := find(l, value)
	switch {
	case err != nil:
		return nil, err
	case found && l.Overrides[at].Action == policy.OverrideDeny:
		return nil, nil
	case found:
		return nil, fmt.Errorf("the key is in overrides[%d] of limit %s already, with action %s, and a key can be in one only: "+
			"take it out there first (kubectl edit)", at, l.Name, l.Overrides[at].Action)
	}
	path := fmt.Sprintf("/spec/limits/%d/overrides", place)
	room := slices.IndexFunc(l.Overrides, func(o policy.Override) bool {
		return o.Action == policy.OverrideDeny && len(o.Keys) < policy.MaxOverrideKeys
	})
	banned := override{Keys: []string{value}, Action: policy.OverrideDeny}
	switch {
	case room >= 0:
		return []Operation{{"add", fmt.Sprintf("%s/%d/keys/-", path, room), value}}, nil
	case len(l.Overrides) == 0:
		return []Operation{{"add", path, []override{banned}}}, nil
	case len(l.Overrides) >= policy.MaxOverrides:
		return nil, fmt.Errorf("limit %s has %d overrides, which is as many as it can have, and none with action Deny has room: "+
			"take some out first (kubectl edit)", l.Name, policy.MaxOverrides)
	default:
		return []Operation{{"add", path + "/-", banned}}, nil
	}
}

// Remove takes a key out of the override that denies it. There are no operations if
// none does.
func Remove(spec *policy.Spec, place int, value string) ([]Operation, error) {
	l := &spec.Limits[place]
	at, key, found, err := find(l, value)
	if err != nil || !found || l.Overrides[at].Action != policy.OverrideDeny {
		return nil, err
	}
	path := fmt.Sprintf("/spec/limits/%d/overrides", place)
	if len(l.Overrides[at].Keys) > 1 {
		path += fmt.Sprintf("/%d/keys/%d", at, key)
	} else if len(l.Overrides) > 1 {
		path += fmt.Sprintf("/%d", at)
	}
	return []Operation{{Op: "remove", Path: path}}, nil
}

// find finds the override that has a key.
func find(l *policy.Limit, value string) (at, key int, found bool, err error) {
	switch {
	case len(l.Key) == 0:
		return 0, 0, false, fmt.Errorf("limit %s has one counter for all and no key: nobody can be banned from it alone", l.Name)
	case len(l.Key) > 1:
		return 0, 0, false, fmt.Errorf("limit %s counts by %d attributes together, and overrides name values of a key of one part: "+
			"ban from a limit with such a key", l.Name, len(l.Key))
	case value == "" || utf8.RuneCountInString(value) > policy.MaxKeyValue:
		return 0, 0, false, fmt.Errorf("a key has 1 to %d characters", policy.MaxKeyValue)
	}
	wanted, err := l.CanonicalKey(value)
	if err != nil {
		return 0, 0, false, fmt.Errorf("the key %w", err)
	}
	for at := range l.Overrides {
		for key, other := range l.Overrides[at].Keys {
			canonical, err := l.CanonicalKey(other)
			if err == nil && canonical == wanted {
				return at, key, true, nil
			}
		}
	}
	return 0, 0, false, nil
}

// Guard has a patch applied to one version of the object only: the API server refuses
// it otherwise with a conflict.
func Guard(resourceVersion string) Operation {
	return Operation{"replace", "/metadata/resourceVersion", resourceVersion}
}
