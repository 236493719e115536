package tallyman

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tallyman-dev/tallyman/internal/limiter"
	"github.com/tallyman-dev/tallyman/internal/match"
	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/store"
)

// maxReason bounds what is said about a rejected definition, in bytes.
const maxReason = 512

// snapshot is everything that is enforced at one time. It is immutable: a
// request is decided by one snapshot, whatever is published meanwhile.
type snapshot struct {
	revision store.Revision
	policies []*enforced // by name
	// rejected are the policies that could not be taken over, with the reason.
	// Those that were enforced before still are.
	rejected map[string]string
}

// enforced is one policy, compiled.
type enforced struct {
	definition policy.Definition
	spec       json.RawMessage // of the definition, for State
	timeout    time.Duration
	response   Response
	jitter     time.Duration // of refusals' RetryAfter, at most
	rules      []rule
}

// rule is one limit of an enforced policy.
type rule struct {
	policy  *enforced
	spec    *policy.Limit
	matcher *match.Limit
	limit   *limiter.Rule
	// overrides are the rules of the limit's overrides; nil for those that have
	// no numbers.
	overrides []*limiter.Rule
	keyBase   string
	// template is the limit's decision without the answer, and qualified its
	// title when there is more than one policy.
	template  LimitDecision
	qualified string
}

// compile prepares a definition whose spec has its defaults and is valid.
func compile(d policy.Definition, prefix string) (*enforced, error) {
	if err := d.CheckNames(); err != nil {
		return nil, err
	}
	compiled, err := match.Compile(&d.Spec)
	if err != nil {
		return nil, err
	}
	spec, err := json.Marshal(d.Spec)
	if err != nil {
		return nil, err
	}
	e := &enforced{
		definition: d,
		spec:       spec,
		timeout:    time.Duration(d.Spec.StoreTimeout),
		response: Response{
			StatusCode:  int(d.Spec.Response.StatusCode),
			Body:        d.Spec.Response.Body,
			ContentType: d.Spec.Response.ContentType,
			Headers:     HeaderStyle(d.Spec.Response.Headers),
		},
		jitter: time.Duration(d.Spec.Response.RetryAfterJitter),
		rules:  make([]rule, len(compiled.Limits)),
	}
	for i, matcher := range compiled.Limits {
		if e.rules[i], err = e.rule(matcher, &d.Spec.Limits[i], prefix); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func (e *enforced) rule(matcher *match.Limit, l *policy.Limit, prefix string) (rule, error) {
	d := &e.definition
	limit, err := limiter.PrepareLimit(l)
	if err != nil {
		return rule{}, fmt.Errorf("limit %s: %w", l.Name, err)
	}
	overrides, err := limiter.PrepareOverrides(limit, l.Overrides)
	if err != nil {
		return rule{}, fmt.Errorf("limit %s: %w", l.Name, err)
	}
	return rule{
		policy:    e,
		spec:      l,
		matcher:   matcher,
		limit:     limit,
		overrides: overrides,
		keyBase:   limiter.KeyBase(prefix, d.Namespace, d.Name, l.Name, limit),
		qualified: d.Name + "/" + l.Name,
		template: LimitDecision{
			Policy: d.Name, Limit: l.Name, Title: l.Name,
			Shadow: d.Spec.Enforcement == policy.Shadow, Headers: e.response.Headers,
		},
	}, nil
}

// of is the limit for a request, with the numbers of an override if it has one.
func (r *rule) of(o match.Outcome) *limiter.Rule {
	if o.Override == match.NoOverride {
		return r.limit
	}
	return r.overrides[o.Override]
}

// next is the snapshot that follows when a store says this. A policy that the
// store does not have is gone; one that it has and that cannot be read or
// compiled stays as it was last enforced.
func (s *snapshot) next(from store.Snapshot, labels map[string]string, prefix string) *snapshot {
	n := &snapshot{revision: from.Revision, rejected: map[string]string{}}
	for _, d := range from.Definitions {
		if !d.Selects(labels) {
			continue
		}
		e, err := s.take(d, prefix)
		if err != nil {
			n.reject(d.Name, err, s)
			continue
		}
		n.policies = append(n.policies, e)
	}
	for _, r := range from.Rejected {
		n.reject(r.Name, r.Err, s)
	}
	slices.SortFunc(n.policies, func(a, b *enforced) int {
		return strings.Compare(a.definition.Name, b.definition.Name)
	})
	return n
}

// take compiles a definition, unless it is the one that is enforced already.
func (s *snapshot) take(d policy.Definition, prefix string) (*enforced, error) {
	if e := s.find(d.Name); e != nil && e.definition.Hash == d.Hash {
		return e, nil
	}
	return compile(d, prefix)
}

// reject notes why a policy cannot be taken over, and keeps its last good
// version, if there is one.
func (s *snapshot) reject(name string, reason error, last *snapshot) {
	text := reason.Error()
	s.rejected[name] = strings.ToValidUTF8(text[:min(len(text), maxReason)], "")
	if e := last.find(name); e != nil {
		s.policies = append(s.policies, e)
	}
}

// owner returns the limit that a rule is of, or nil for one of another snapshot.
func (s *snapshot) owner(r *limiter.Rule) *rule {
	for _, e := range s.policies {
		for i := range e.rules {
			if own := &e.rules[i]; own.limit == r || slices.Contains(own.overrides, r) {
				return own
			}
		}
	}
	return nil
}

// find returns the policy of a name, or nil.
func (s *snapshot) find(name string) *enforced {
	for _, e := range s.policies {
		if e.definition.Name == name {
			return e
		}
	}
	return nil
}

// revisionText is empty as long as nothing was published.
func (s *snapshot) revisionText() string {
	if s.revision.IsZero() {
		return ""
	}
	return s.revision.String()
}

// generations are those of the policies that are enforced, by name.
func (s *snapshot) generations() map[string]int64 {
	g := make(map[string]int64, len(s.policies))
	for _, e := range s.policies {
		g[e.definition.Name] = e.definition.Generation
	}
	return g
}

// uids are those of the objects that the policies are from, by name. A policy of a
// file has none.
func (s *snapshot) uids() map[string]string {
	uids := make(map[string]string, len(s.policies))
	for _, e := range s.policies {
		if uid := e.definition.UID; uid != "" {
			uids[e.definition.Name] = uid
		}
	}
	return uids
}
