package limiter

import (
	"context"
	_ "embed"

	"github.com/redis/go-redis/v9"
)

//go:embed scripts/decide.lua
var decideSource string

var decideScript = redis.NewScript(decideSource)

// NamedScripts are those of Scripts, by the names of their files.
func NamedScripts() map[string]*redis.Script {
	return map[string]*redis.Script{"decide.lua": decideScript}
}

// Scripts returns the scripts that Redis counts with, for loading them ahead
// of their first use. Loading is not required: a server that does not know a
// script is sent it.
func Scripts() []*redis.Script {
	return []*redis.Script{decideScript}
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
