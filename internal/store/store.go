package store

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// DefaultPrefix starts the keys of an installation. Installations that share a
// Redis have different ones.
const DefaultPrefix = "tallyman"

const (
	// tombstoneTTL is how long the revision outlives the last definition of a
	// namespace. Enforcers that were cut off for less learn of the deletion.
	tombstoneTTL = 24 * time.Hour
	// MaxDefinitions bounds what is published and read for one namespace.
	MaxDefinitions = 10_000
	// MaxSize bounds the definitions of one namespace together, in bytes: each
	// of its sidecars reads them whole.
	MaxSize = 64 << 20
)

//go:embed scripts/publish.lua
var publishSource string

var publishScript = redis.NewScript(publishSource)

// Store reads and writes definitions. It is safe for concurrent use.
type Store struct {
	client redis.UniversalClient
	prefix string
}

// New returns a store with the keys of a prefix. The client stays the caller's
// to close.
func New(client redis.UniversalClient, prefix string) *Store {
	return &Store{client: client, prefix: prefix}
}

// The namespace is the hash tag: what belongs to one namespace is read and
// written together, on a Redis Cluster too.
func (s *Store) policiesKey(ns string) string  { return s.prefix + ":policies:{" + ns + "}" }
func (s *Store) revisionKey(ns string) string  { return s.prefix + ":revision:{" + ns + "}" }
func (s *Store) enforcersKey(ns string) string { return s.prefix + ":enforcers:{" + ns + "}" }
func (s *Store) placesKey(ns string) string    { return s.prefix + ":places:{" + ns + "}" }
func (s *Store) seenKey(ns string) string      { return s.prefix + ":seen:{" + ns + "}" }
func (s *Store) channel(ns string) string      { return s.prefix + ":events:" + ns }
func (s *Store) namespacesKey() string         { return s.prefix + ":namespaces" }

// Ping tells whether the store answers.
func (s *Store) Ping(ctx context.Context) error { return s.client.Ping(ctx).Err() }

// Publication is the outcome of a publish.
type Publication struct {
	Revision Revision
	// Changed is false when the store held the same definitions already; then
	// nothing was written.
	Changed bool
}

// Publish makes these definitions the whole truth of a namespace, in one step.
// Without definitions it records that there are none. When the store says the
// same already, nothing is written. After an error it may have happened or not,
// and can be repeated.
//
// One publisher at a time writes a namespace; the manager's leader election and
// its queue see to that.
func (s *Store) Publish(ctx context.Context, ns string, definitions []policy.Definition) (Publication, error) {
	publication, err := s.publishIndexed(ctx, ns, definitions)
	if err != nil {
		return Publication{}, fmt.Errorf("publish policies of namespace %q: %w", ns, err)
	}
	return publication, nil
}

// publishIndexed keeps the index of namespaces a superset at any time: it is
// written before the first definition and after the last. It has a key of its
// own, since on a Redis Cluster the script cannot reach it.
func (s *Store) publishIndexed(ctx context.Context, ns string, definitions []policy.Definition) (Publication, error) {
	fields, err := encode(ns, definitions)
	if err != nil {
		return Publication{}, err
	}
	indexed, err := s.client.SIsMember(ctx, s.namespacesKey(), ns).Result()
	if redis.HasErrorPrefix(err, "WRONGTYPE") { // garbage; every publish puts its namespace back
		indexed, err = false, s.client.Del(ctx, s.namespacesKey()).Err()
	}
	if err != nil {
		return Publication{}, err
	}
	if len(definitions) > 0 && !indexed {
		if err := s.client.SAdd(ctx, s.namespacesKey(), ns).Err(); err != nil {
			return Publication{}, err
		}
	}
	publication, err := s.publish(ctx, ns, fields)
	if err == nil && len(definitions) == 0 && indexed {
		err = s.client.SRem(ctx, s.namespacesKey(), ns).Err()
	}
	return publication, err
}

// encode returns name, definition, name, definition, and so on. What Load would
// reject is an error.
func encode(ns string, definitions []policy.Definition) ([]any, error) {
	if len(definitions) > MaxDefinitions {
		return nil, fmt.Errorf("%d definitions are more than the %d allowed", len(definitions), MaxDefinitions)
	}
	fields := make([]any, 0, 2*len(definitions))
	names := make(map[string]bool, len(definitions))
	size := 0
	for _, d := range definitions {
		if d.Namespace != ns || d.Name == "" || names[d.Name] {
			return nil, fmt.Errorf("definition %q of namespace %q is of another namespace, has no name or comes twice", d.Name, d.Namespace)
		}
		names[d.Name] = true
		data, err := d.Encode()
		if err != nil {
			return nil, err
		}
		if len(data) > policy.MaxDefinitionSize {
			return nil, fmt.Errorf("definition %q has %d bytes, more than the %d allowed", d.Name, len(data), policy.MaxDefinitionSize)
		}
		if size += len(data); size > MaxSize {
			return nil, fmt.Errorf("the definitions have more than the %d bytes allowed together", MaxSize)
		}
		fields = append(fields, d.Name, data)
	}
	return fields, nil
}

func (s *Store) publish(ctx context.Context, ns string, fields []any) (Publication, error) {
	keys := []string{s.policiesKey(ns), s.revisionKey(ns)}
	args := append([]any{s.channel(ns), tombstoneTTL.Milliseconds()}, fields...)
	reply, err := publishScript.Run(ctx, s.client, keys, args...).Slice()
	if err != nil {
		return Publication{}, err
	}
	if len(reply) != 2 {
		return Publication{}, fmt.Errorf("the publish script answered with %d values instead of 2", len(reply))
	}
	text, _ := reply[0].(string)
	changed, _ := reply[1].(int64)
	revision, err := ParseRevision(text)
	return Publication{Revision: revision, Changed: changed == 1}, err
}

// Namespaces lists those that have definitions in the store.
func (s *Store) Namespaces(ctx context.Context) ([]string, error) {
	namespaces, err := s.client.SMembers(ctx, s.namespacesKey()).Result()
	if err != nil {
		return nil, fmt.Errorf("list namespaces with definitions: %w", err)
	}
	return namespaces, nil
}
