package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/tallyman-dev/tallyman/internal/policyfile"
	"github.com/tallyman-dev/tallyman/internal/simulate"
)

const simulateLong = `Decide the requests of a trace as Tallyman would, at the times that the trace
says. Nothing is waited for: times are simulated.

Each line of the trace is a request as a JSON object:

  {"at":"1.5s","method":"GET","path":"/","headers":{"X-Api-Key":"a"},
   "clientIP":"10.0.0.1","cost":2,"op":"take"}

Only at is needed: the time since the start. op is take, peek, refund or
takeUpTo. Each request is answered by a line on standard output, in the same
order, and a summary follows on standard error.

The exit code is 0 when all requests were decided, 2 when an argument, the
policy file or a line of the trace is not valid, and 1 when the store failed.`

const simulateExample = `  # Try a policy on recorded requests
  kubectl tallyman simulate -f policy.yaml --trace requests.jsonl

  # By the scripts in a Redis, where nothing else is touched and nothing is left
  kubectl tallyman simulate -f policy.yaml --trace requests.jsonl --store redis://localhost:6379

  # One request a second, from standard input
  seq 0 99 | sed 's/.*/{"at":"&s"}/' | kubectl tallyman simulate -f policy.yaml --trace -`

// simulateOptions are the flags of simulate.
type simulateOptions struct {
	policies, trace, store, start string
}

func newSimulateCommand() *cobra.Command {
	var o simulateOptions
	c := &cobra.Command{
		Use:     "simulate -f POLICY.yaml --trace TRACE.jsonl",
		Short:   "Decide a trace of requests in simulated time",
		Long:    simulateLong,
		Example: simulateExample,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return o.run(c.Context(), c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := c.Flags()
	flags.StringVarP(&o.policies, "filename", "f", "", "`file` with one RateLimitPolicy or several, all of which apply")
	flags.StringVar(&o.trace, "trace", "", "`file` with the requests, one JSON object a line; - is standard input")
	flags.StringVar(&o.store, "store", memoryStore, "`URL` of the store that counts: memory: or a Redis as in the sidecar's --store, such as redis://localhost:6379; "+
		"credentials also from TALLYMAN_STORE_USERNAME and TALLYMAN_STORE_PASSWORD")
	flags.StringVar(&o.start, "start", "2024-01-01T00:00:00Z", "`time` of the trace's 0s, which windows are aligned to (RFC 3339, from 1970 to 2100)")
	for _, name := range []string{"filename", "trace"} {
		if err := c.MarkFlagRequired(name); err != nil {
			panic(err) // there is no such flag: a fault of ours
		}
	}
	return c
}

// run checks all that it is given before it decides the first request.
func (o *simulateOptions) run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) (err error) {
	start, err := parseStart(o.start)
	if err != nil {
		return err
	}
	var policies simulate.Policies
	if err := policyfile.Read(o.policies, "default", policies.Add); err != nil {
		return err
	}
	trace, closeTrace, err := openTrace(ctx, o.trace, stdin)
	if err != nil {
		return err
	}
	defer closeTrace()
	clock := simulate.NewClock(start)
	store, err := openStore(ctx, o.store, clock)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.close(ctx)) }()

	engine := simulate.NewEngine(&policies, clock, store.Store, store.prefix)
	summary := simulate.NewSummary(engine.Limits())
	err = simulate.Run(ctx, trace, engine, stdout, newProgress(summary, stdout, stderr))
	return errors.Join(runError(err), summary.Write(stderr))
}

func parseStart(text string) (time.Time, error) {
	start, err := time.Parse(time.RFC3339, text)
	if err != nil || start.Unix() < 0 || start.UTC().Year() > 2100 {
		return start, fmt.Errorf("--start is %.40q: write a time from 1970 to 2100 such as 2024-01-01T00:00:00Z", text)
	}
	return start, nil
}

// openTrace opens a file, or standard input, whose reading ends with ctx.
func openTrace(ctx context.Context, path string, stdin io.Reader) (t *simulate.Trace, closeTrace func(), err error) {
	if path == "-" {
		r, w := io.Pipe()
		go func() { // until the program's end, if nobody writes any more
			_, err := io.Copy(w, stdin)
			_ = w.CloseWithError(err)
		}()
		stop := context.AfterFunc(ctx, func() { _ = w.CloseWithError(ctx.Err()) })
		return simulate.NewTrace("stdin", r), func() { stop() }, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("open the trace: %w", err)
	}
	return simulate.NewTrace(path, f), func() { _ = f.Close() }, nil
}

// runError tells faults of the trace from all else that can go wrong.
func runError(err error) error {
	switch {
	case err == nil, errors.As(err, new(*simulate.LineError)):
		return err
	case errors.Is(err, context.Canceled):
		return failure{errors.New("interrupted")}
	default:
		return failure{err}
	}
}
