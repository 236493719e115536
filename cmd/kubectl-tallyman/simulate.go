package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/tallyman-dev/tallyman/internal/policyfile"
	"github.com/tallyman-dev/tallyman/internal/simulate"
)

const simulateLong = `Decide requests as Tallyman would, at the times at which they were made. Nothing is
waited for: times are simulated.

The requests of an access log (--log) are decided to tell what policies would have
done to real traffic: how many requests each limit would have admitted and refused,
of whom, and when. The format is told from the first lines: combined and common are
those of nginx and Apache, envoy is Envoy's default, and json is an object a line,
whose fields --map names. Lines that cannot be read are counted and passed over. The
report, on standard output, shows keys as they were logged.

Each line of a trace (--trace) is a request as a JSON object:

  {"at":"1.5s","method":"GET","path":"/","headers":{"X-Api-Key":"a"},
   "clientIP":"10.0.0.1","cost":2,"op":"take"}

Only at is needed: the time since the start. op is take, peek, refund or
takeUpTo. Each request is answered by a line on standard output, in the same
order, and a summary follows on standard error.

The exit code is 0 when all requests were decided, 2 when an argument, the
policy file, a line of the trace or all of the log is not valid, and 1 when the
store failed or the log could not be read to its end.`

const simulateExample = `  # What would this policy have done to yesterday's traffic?
  kubectl tallyman simulate -f policy.yaml --log access.log.1.gz

  # What would change with another one?
  kubectl tallyman simulate -f policy.yaml --versus new.yaml --log access.log.1.gz

  # The same, also as a page with charts
  kubectl tallyman simulate -f policy.yaml --versus new.yaml --log access.log.1.gz --html report.html

  # Logs of JSON, from pods
  kubectl logs deploy/web | kubectl tallyman simulate -f policy.yaml --log - \
    --map time=ts,method=request.method,path=uri,clientIP=remote_addr,header.X-Api-Key=api_key

  # Try a policy on a trace
  kubectl tallyman simulate -f policy.yaml --trace requests.jsonl

  # By the scripts in a Redis, where nothing else is touched and nothing is left
  kubectl tallyman simulate -f policy.yaml --trace requests.jsonl --store redis://localhost:6379

  # One request a second, from standard input
  seq 0 99 | sed 's/.*/{"at":"&s"}/' | kubectl tallyman simulate -f policy.yaml --trace -`

// simulateOptions are the flags of simulate.
type simulateOptions struct {
	policies, store string
	trace, start    string // of a trace
	log             logOptions
}

// Flags that go with one of trace and log only.
var (
	traceFlags = []string{"start"}
	logFlags   = []string{"format", "map", "trusted-hops", "versus", "html", "decisions", "output"}
)

func newSimulateCommand() *cobra.Command {
	var o simulateOptions
	c := &cobra.Command{
		Use:     "simulate -f POLICY.yaml (--log ACCESS.log | --trace TRACE.jsonl)",
		Short:   "Decide the requests of an access log or a trace in simulated time",
		Long:    simulateLong,
		Example: simulateExample,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			run, others := o.runTrace, logFlags
			if o.trace == "" {
				run, others = o.runLog, traceFlags
			}
			for _, name := range others {
				if c.Flags().Changed(name) {
					return fmt.Errorf("--%s does not go with --%s (see %s --help)", name, o.input(), c.CommandPath())
				}
			}
			return run(c.Context(), c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := c.Flags()
	flags.StringVarP(&o.policies, "filename", "f", "", "`file` with one RateLimitPolicy or several, all of which apply")
	flags.StringVar(&o.trace, "trace", "", "`file` with the requests, one JSON object a line; - is standard input")
	flags.StringVar(&o.store, "store", memoryStore, "`URL` of the store that counts: memory: or a Redis as in the sidecar's --store, such as redis://localhost:6379; "+
		"credentials also from TALLYMAN_STORE_USERNAME and TALLYMAN_STORE_PASSWORD")
	flags.StringVar(&o.start, "start", "2024-01-01T00:00:00Z", "`time` of the trace's 0s, which windows are aligned to (RFC 3339, from 1970 to 2100)")
	o.log.addTo(c)
	c.MarkFlagsOneRequired("log", "trace")
	c.MarkFlagsMutuallyExclusive("log", "trace")
	if err := c.MarkFlagRequired("filename"); err != nil {
		panic(err) // there is no such flag: a fault of ours
	}
	return c
}

// input is the flag that the requests come from.
func (o *simulateOptions) input() string {
	if o.trace == "" {
		return "log"
	}
	return "trace"
}

// runTrace decides a trace. It checks all that it is given before it decides the first
// request.
func (o *simulateOptions) runTrace(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) (err error) {
	start, err := parseStart(o.start)
	if err != nil {
		return err
	}
	var policies simulate.Policies
	if err := policyfile.Read(o.policies, "default", policies.Add); err != nil {
		return err
	}
	in, closeTrace, err := openInput(ctx, o.trace, stdin)
	if err != nil {
		return fmt.Errorf("open the trace: %w", err)
	}
	defer closeTrace()
	trace := simulate.NewTrace(inputName(o.trace), in)
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

// runError tells faults of a trace from all else that can go wrong.
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
