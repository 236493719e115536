package limiter

import (
	"context"
	_ "embed"

	"github.com/redis/go-redis/v9"
)

//go:embed scripts/take.lua
var takeSource string

var takeScript = redis.NewScript(takeSource)

// Scripts returns the scripts that Redis counts with, for loading them ahead
// of their first use. Loading is not required: a server that does not know a
// script is sent it.
func Scripts() []*redis.Script {
	return []*redis.Script{takeScript}
}

// once makes a client send each script command at most once. The clients of
// go-redis repeat a command whose connection broke or whose answer came late,
// ClusterClient whatever its MaxRetries; a take that was carried out without our
// knowing would be charged twice. Redirections, and the EVAL after a NOSCRIPT,
// repeat only what was not carried out.
type once struct{ redis.UniversalClient }

// EvalSha is called by redis.Script.
func (c once) EvalSha(ctx context.Context, sha1 string, keys []string, args ...any) *redis.Cmd {
	return c.process(ctx, "evalsha", sha1, keys, args)
}

// Eval is called by redis.Script.
func (c once) Eval(ctx context.Context, source string, keys []string, args ...any) *redis.Cmd {
	return c.process(ctx, "eval", source, keys, args)
}

func (c once) process(ctx context.Context, name, script string, keys []string, args []any) *redis.Cmd {
	command := make([]any, 0, 3+len(keys)+len(args))
	command = append(command, name, script, len(keys))
	for _, key := range keys {
		command = append(command, key)
	}
	cmd := redis.NewCmd(ctx, append(command, args...)...)
	_ = c.Process(ctx, unrepeatable{cmd}) // the command keeps its error
	return cmd
}

// unrepeatable is a command that go-redis does not send again on its own.
type unrepeatable struct{ *redis.Cmd }

// NoRetry implements redis.Cmder.
func (unrepeatable) NoRetry() bool { return true }
