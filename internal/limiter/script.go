package limiter

import (
	"context"
	_ "embed"

	"github.com/redis/go-redis/v9"
)

//go:embed scripts/decide.lua
var decideSource string

var decideScript = redis.NewScript(decideSource)

// Scripts are those that Redis counts with, by the names of their files, for loading
// them ahead of their first use. Loading is not required: a server that does not know a
// script is sent it.
func Scripts() map[string]*redis.Script {
	return map[string]*redis.Script{"decide.lua": decideScript}
}

// once is a command that go-redis sends at most once. Its clients repeat a
// command whose connection broke or whose answer came late, ClusterClient
// whatever its MaxRetries; a take that was carried out without our knowing would
// be charged twice. Redirections repeat only what was not carried out.
type once struct{ *redis.Cmd }

// NoRetry implements redis.Cmder.
func (once) NoRetry() bool { return true }

// evalSHA calls the script by its name.
func evalSHA(ctx context.Context, e *evaluation) once {
	return e.command(ctx, "evalsha", decideScript.Hash())
}

// eval sends the script along, for a server that does not know it.
func eval(ctx context.Context, e *evaluation) once {
	return e.command(ctx, "eval", decideSource)
}
