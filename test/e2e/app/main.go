// Command app is both sides of the end-to-end tests' traffic, in pods that have
// nothing but it: an API that tells which pod answered, and clients that tell what
// they were answered.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

const usage = `usage: app serve                      be the API
       app load [flags] URL           send requests, and print the answers as JSON
       app websocket|events|unary|stream HOST:PORT
                                      open one, and print what came of it
       app crash                      end the process 1, as by a fault of its own
       app wait                       do nothing`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, append(os.Args[1:], "")); err != nil {
		fmt.Fprintln(os.Stderr, "app:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	command, target := args[0], args[min(1, len(args)-1)]
	if open, ok := streams[command]; ok {
		return tell(ctx, open, target)
	}
	switch command {
	case "serve":
		return serve(ctx)
	case "load":
		return load(ctx, args[1:len(args)-1])
	case "crash":
		// A Go program that does not expect it prints its stacks and exits with 2.
		return syscall.Kill(1, syscall.SIGQUIT)
	case "wait":
		<-ctx.Done()
		return nil
	default:
		return errors.New(usage)
	}
}
