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
func (s *Store) LoadScripts(ctx context.Context, scripts map[string]*redis.Script) error {
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

func loadScripts(ctx context.Context, node *redis.Client, scripts map[string]*redis.Script) error {
	missing, err := missingScripts(ctx, node, scripts)
	for _, name := range missing {
		if err == nil {
			err = scripts[name].Load(ctx, node).Err()
		}
	}
	return err
}

// missingScripts are the names of those that a node does not know, sorted.
func missingScripts(ctx context.Context, node *redis.Client, scripts map[string]*redis.Script) (missing []string, err error) {
	names := slices.Sorted(maps.Keys(scripts))
	hashes := make([]string, len(names))
	for i, name := range names {
		hashes[i] = scripts[name].Hash()
	}
	known, err := node.ScriptExists(ctx, hashes...).Result()
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		if !known[i] {
			missing = append(missing, name)
		}
	}
	return missing, nil
}

// Scripts are those of this package, by the names of their files.
func Scripts() map[string]*redis.Script {
	return map[string]*redis.Script{
		"publish.lua": publishScript, "load.lua": loadScript, "beat.lua": beatScript, "enforcers.lua": enforcersScript,
	}
}
