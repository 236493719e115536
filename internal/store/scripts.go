package store

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/redis/go-redis/v9"
)

// LoadScripts makes every node of the store know the scripts: all of a Redis
// Cluster, replicas too, since they may be promoted. A node that knows them all
// is only asked.
func (s *Store) LoadScripts(ctx context.Context, scripts []*redis.Script) error {
	load := func(ctx context.Context, node *redis.Client) error { return loadScripts(ctx, node, scripts) }
	var err error
	switch client := s.client.(type) {
	case *redis.ClusterClient:
		err = client.ForEachShard(ctx, load)
	case *redis.Client:
		err = load(ctx, client)
	default:
		err = fmt.Errorf("a client of type %T is not known", client)
	}
	if err != nil {
		return fmt.Errorf("load scripts: %w", err)
	}
	return nil
}

func loadScripts(ctx context.Context, node *redis.Client, scripts []*redis.Script) error {
	hashes := make([]string, len(scripts))
	for i, script := range scripts {
		hashes[i] = script.Hash()
	}
	known, err := node.ScriptExists(ctx, hashes...).Result()
	if err != nil || !slices.Contains(known, false) {
		return err
	}
	for i, script := range scripts {
		if !known[i] {
			if err := script.Load(ctx, node).Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

// NamedScripts are those of this package, by the names of their files.
func NamedScripts() map[string]*redis.Script {
	return map[string]*redis.Script{
		"publish.lua": publishScript, "load.lua": loadScript, "beat.lua": beatScript, "enforcers.lua": enforcersScript,
	}
}

// Scripts are those of this package.
func Scripts() []*redis.Script {
	return slices.Collect(maps.Values(NamedScripts()))
}
