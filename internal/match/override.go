package match

import (
	"net/netip"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// overrides finds the override of a request's key.
type overrides struct {
	byKey   map[string]int // index in actions
	actions []policy.OverrideAction
}

// newOverrides encodes the keys of overrides as those of requests are. A spec
// with overrides has a key of one part.
func newOverrides(k key, from []policy.Override) overrides {
	if len(from) == 0 {
		return overrides{}
	}
	o := overrides{byKey: make(map[string]int), actions: make([]policy.OverrideAction, len(from))}
	for i := range from {
		o.actions[i] = from[i].Action
		for _, value := range from[i].Keys {
			o.byKey[k.parts[0].encode(value)] = i
		}
	}
	return o
}

// encode is the key of a request in which the part has a value that a policy
// names.
func (p *keyPart) encode(value string) string {
	if p.attribute != attrClientIP {
		return string(p.appendValue(nil, value))
	}
	addr, _ := netip.ParseAddr(value) // a valid spec's is one
	return string(p.appendAddress(nil, addr.Unmap()))
}

// apply gives a request that is to be counted the verdict of its override.
func (all overrides) apply(o *Outcome) {
	i, found := all.byKey[o.Key]
	if !found {
		return
	}
	o.Override = i
	switch all.actions[i] {
	case policy.OverrideExempt:
		o.Verdict, o.Key = Skip, ""
	case policy.OverrideDeny:
		o.Verdict, o.Key = Deny, ""
	}
}
