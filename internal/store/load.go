package store

import (
	"context"
	"crypto/sha256"
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

// known are definitions that have been read, by the SHA-256 of their text: of the
// hundreds of a namespace, few differ from one revision to the next, and to decode
// and check one takes a hundred times as long as to recognize it.
type known map[[sha256.Size]byte]policy.Definition

// Load reads a namespace in one step. Garbage among the definitions is
// rejected, and does not hide the others; garbage for a revision is none.
func (s *Store) Load(ctx context.Context, ns string) (Snapshot, error) {
	snapshot, _, err := s.load(ctx, ns, nil)
	return snapshot, err
}

// load is Load for who remembers the definitions of the last time. It returns those
// to remember for the next.
func (s *Store) load(ctx context.Context, ns string, last known) (Snapshot, known, error) {
	keys := []string{s.policiesKey(ns), s.revisionKey(ns)}
	reply, err := loadScript.RunRO(ctx, s.client, keys, MaxDefinitions, policy.MaxDefinitionSize, MaxSize).StringSlice()
	if err == nil && len(reply)%2 != 1 {
		err = fmt.Errorf("the load script answered with %d values", len(reply))
	}
	if err != nil {
		return Snapshot{}, nil, fmt.Errorf("load policies of namespace %q: %w", ns, err)
	}
	snapshot, next := Snapshot{Revision: revisionOrNone(reply[0])}, known{}
	if snapshot.Revision.IsZero() {
		return snapshot, last, nil
	}
	for field := range slices.Chunk(reply[1:], 2) {
		name, text := field[0], []byte(field[1])
		sum := sha256.Sum256(text)
		d, err := last.decode(sum, text)
		// It must say of itself that it belongs here.
		if err == nil && (d.Namespace != ns || d.Name != name) {
			err = fmt.Errorf("the definition is of policy %.60q of namespace %.60q", d.Name, d.Namespace)
		}
		if err != nil {
			snapshot.Rejected = append(snapshot.Rejected, Rejection{Name: name, Err: err})
			continue
		}
		snapshot.Definitions = append(snapshot.Definitions, d)
		next[sum] = d
	}
	slices.SortFunc(snapshot.Definitions, func(a, b policy.Definition) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(snapshot.Rejected, func(a, b Rejection) int { return strings.Compare(a.Name, b.Name) })
	return snapshot, next, nil
}

func (k known) decode(sum [sha256.Size]byte, text []byte) (policy.Definition, error) {
	if d, read := k[sum]; read {
		return d, nil
	}
	return policy.DecodeDefinition(text)
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
