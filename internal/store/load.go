package store

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

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

//go:embed scripts/load.lua
var loadSource string

var loadScript = redis.NewScript(loadSource)

// Load reads a namespace in one step. Garbage among the definitions is
// rejected, and does not hide the others; garbage for a revision is none.
func (s *Store) Load(ctx context.Context, ns string) (Snapshot, error) {
	keys := []string{s.policiesKey(ns), s.revisionKey(ns)}
	reply, err := loadScript.RunRO(ctx, s.client, keys, MaxDefinitions, policy.MaxDefinitionSize, MaxSize).StringSlice()
	if err == nil && len(reply)%2 != 1 {
		err = fmt.Errorf("the load script answered with %d values", len(reply))
	}
	if err != nil {
		return Snapshot{}, fmt.Errorf("load policies of namespace %q: %w", ns, err)
	}
	snapshot := Snapshot{Revision: revisionOrNone(reply[0])}
	if snapshot.Revision.IsZero() {
		return snapshot, nil
	}
	for field := range slices.Chunk(reply[1:], 2) {
		snapshot.add(ns, field[0], field[1])
	}
	slices.SortFunc(snapshot.Definitions, func(a, b policy.Definition) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(snapshot.Rejected, func(a, b Rejection) int { return strings.Compare(a.Name, b.Name) })
	return snapshot, nil
}

// revision reads the revision alone, zero when there is none.
func (s *Store) revision(ctx context.Context, ns string) (Revision, error) {
	text, err := s.client.Get(ctx, s.revisionKey(ns)).Result()
	if err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
		return Revision{}, fmt.Errorf("read revision of namespace %q: %w", ns, err)
	}
	return revisionOrNone(text), nil
}

// revisionOrNone is zero for garbage: the next publish begins a new epoch.
func revisionOrNone(text string) Revision {
	revision, err := ParseRevision(text)
	if err != nil {
		return Revision{}
	}
	return revision
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
