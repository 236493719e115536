package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// Snapshot is what the store says about a namespace.
type Snapshot struct {
	// Revision is zero when the store knows nothing of the namespace: it was
	// lost, or nothing was ever published. That is not a deletion.
	Revision Revision
	// Definitions are those that could be read, by name.
	Definitions []policy.Definition
	// Rejected are those that could not, by name.
	Rejected []Rejection
}

// Rejection is a definition that cannot be enforced as the store has it.
type Rejection struct {
	Name string
	Err  error
}

// Load reads a namespace in one step. Garbage among the definitions is
// rejected, and does not hide the others.
func (s *Store) Load(ctx context.Context, ns string) (Snapshot, error) {
	var (
		revision    *redis.StringCmd
		definitions *redis.MapStringStringCmd
	)
	_, err := s.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		revision = p.Get(ctx, s.revisionKey(ns))
		definitions = p.HGetAll(ctx, s.policiesKey(ns))
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return Snapshot{}, fmt.Errorf("load policies of namespace %q: %w", ns, err)
	}
	if errors.Is(revision.Err(), redis.Nil) {
		return Snapshot{}, nil
	}
	snapshot := Snapshot{}
	if snapshot.Revision, err = ParseRevision(revision.Val()); err != nil {
		return Snapshot{}, fmt.Errorf("load policies of namespace %q: %w", ns, err)
	}
	fields, err := definitions.Result()
	if err != nil {
		return Snapshot{}, fmt.Errorf("load policies of namespace %q: %w", ns, err)
	}
	if len(fields) > MaxDefinitions {
		return Snapshot{}, fmt.Errorf("load policies of namespace %q: %d definitions are more than the %d allowed", ns, len(fields), MaxDefinitions)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		snapshot.add(ns, name, fields[name])
	}
	return snapshot, nil
}

// add decodes a definition, which must say of itself that it belongs here.
func (s *Snapshot) add(ns, name, data string) {
	d, err := policy.DecodeDefinition([]byte(data))
	if err == nil && (d.Namespace != ns || d.Name != name) {
		err = fmt.Errorf("the definition is of policy %.60q of namespace %.60q", d.Name, d.Namespace)
	}
	if err != nil {
		s.Rejected = append(s.Rejected, Rejection{Name: name, Err: err})
		return
	}
	s.Definitions = append(s.Definitions, d)
}
