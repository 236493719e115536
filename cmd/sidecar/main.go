// Command sidecar enforces RateLimitPolicies in front of an app. See --help.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/redis/go-redis/v9/logging"
	_ "golang.org/x/crypto/x509roots/fallback" // an image has no certificates of its own

	"github.com/tallyman-dev/tallyman/internal/sidecar"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "sidecar:", err)
		os.Exit(1)
	}
}

func run() error {
	config, err := sidecar.ParseConfig(os.Args[1:], os.Getenv, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return fmt.Errorf("%w (see --help)", err)
	case config.ShowVersion:
		fmt.Println("sidecar", version())
		return nil
	}
	tuneMemory(os.Getenv)
	logging.Disable() // go-redis's own log; its errors reach us, and are logged
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: config.LogLevel}))

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return sidecar.Run(ctx, config, log)
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
