package tallyman

import (
	"encoding/json"
	"maps"
	"slices"
	"time"
)

// State is what a limiter enforces at one time. Its JSON is for people and
// tools that look into a running enforcer.
type State struct {
	Ready bool `json:"ready"`
	// Revision of the definitions, "epoch-number"; empty with a policy file and
	// as long as none was published.
	Revision string `json:"revision,omitempty"`
	// LoadedAt is the time of the last read that succeeded.
	LoadedAt time.Time `json:"loadedAt,omitzero"`
	// Policies in force, by name.
	Policies []PolicyState `json:"policies"`
	// Rejected are the policies whose newest definition could not be taken
	// over, with the reason. Those that are in Policies as well are enforced
	// as they last were.
	Rejected map[string]string `json:"rejected,omitempty"`
}

// PolicyState is one policy in force.
type PolicyState struct {
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	Generation int64  `json:"generation"`
	// Spec is the policy's, with its defaults, and has the JSON of a
	// RateLimitPolicy's spec.
	// It is shared: do not change it.
	Spec json.RawMessage `json:"spec"`
}

// LoadedAt is the time at which the definitions were last read; zero before the
// first time.
func (l *Limiter) LoadedAt() time.Time { return l.loadedAt() }

// Revision of the definitions that are enforced, as State has it.
func (l *Limiter) Revision() string { return l.current.Load().revisionText() }

// LeaseState is what this process holds of a limit with distribution Leased.
type LeaseState struct {
	Policy, Limit string
	// Leases is how many keys have units at hand, and IdleUnits all of these units:
	// they are taken from the shared count, and not spent.
	Leases, IdleUnits int64
}

// Leases tells what is held of the limits in force, in no order. It looks at each
// lease, of which there are 65,536 at most: it is for scrapes, not for requests.
func (l *Limiter) Leases() []LeaseState {
	s, byRule := l.current.Load(), map[*rule]LeaseState{}
	for held, h := range l.engine.Held() {
		owner := s.owner(held)
		if owner == nil {
			continue // of a limit that is no longer in force
		}
		sum := byRule[owner]
		byRule[owner] = LeaseState{
			Policy: owner.template.Policy, Limit: owner.template.Limit,
			Leases: sum.Leases + h.Leases, IdleUnits: sum.IdleUnits + h.Units,
		}
	}
	return slices.Collect(maps.Values(byRule))
}

// State tells what is enforced now.
func (l *Limiter) State() State {
	s := l.current.Load()
	state := State{
		Ready:    l.IsReady(),
		Revision: s.revisionText(),
		LoadedAt: l.LoadedAt(),
		Policies: make([]PolicyState, len(s.policies)),
		Rejected: maps.Clone(s.rejected),
	}
	for i, e := range s.policies {
		state.Policies[i] = e.state()
	}
	return state
}

func (e *enforced) state() PolicyState {
	d := &e.definition
	return PolicyState{Namespace: d.Namespace, Name: d.Name, Generation: d.Generation, Spec: e.spec}
}
