package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/tallyman-dev/tallyman/internal/testenv"
)

var (
	errTargets = errors.New("targets were missed")
	errSlow    = errors.New("it takes too long")
)

func main() {
	log.SetLogger(logr.Discard()) // of the libraries; what matters is said
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

// options are the flags, and what follows from them.
type options struct {
	policies, namespaces, watchers, edits int
	quick, check                          bool
	output                                string

	resync time.Duration // of the manager
	idle   time.Duration // for which an idle cluster is looked at: two resyncs and more
	limit  time.Duration // of the whole run
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{resync: 15 * time.Second, idle: 35 * time.Second, limit: 15 * time.Minute}
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&o.policies, "policies", 10_000, "`number` of policies, in all namespaces together")
	flags.IntVar(&o.namespaces, "namespaces", 100, "`number` of namespaces")
	flags.IntVar(&o.watchers, "watchers", 1_000, "`number` of watching sidecars, in all namespaces together; at first, all in one")
	flags.IntVar(&o.edits, "edits", 100, "`number` of edits, one after the other; a fifth of that with all watchers in one namespace")
	flags.BoolVar(&o.quick, "quick", false, "a look of a minute: 500 policies in 10 namespaces, 50 watchers, 20 edits")
	flags.BoolVar(&o.check, "check", false, "fail if a target is missed")
	flags.StringVar(&o.output, "o", "table", "what to print: table or json")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.quick {
		o.policies, o.namespaces, o.watchers, o.edits = 500, 10, 50, 20
		o.resync, o.idle = 2*time.Second, 6*time.Second
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q: all is said by flags", flags.Arg(0))
	case o.output != "table" && o.output != "json":
		return o, fmt.Errorf("-o must be table or json, not %q", o.output)
	case o.namespaces < 1 || o.namespaces > 1000 || o.edits < 5:
		return o, errors.New("--namespaces must be 1..1000, and --edits 5 or more")
	case o.policies < o.namespaces || o.policies%o.namespaces != 0 || o.watchers < o.namespaces || o.watchers%o.namespaces != 0:
		return o, errors.New("--policies and --watchers must be multiples of --namespaces: each has as many")
	}
	return o, nil
}

// bench is what the steps of a run share.
type bench struct {
	options
	progress io.Writer
	began    time.Time

	dir, root, program, kubeconfig string
	plane                          *testenv.ControlPlane
	api                            client.Client
	redis                          *redisServer
	manager                        *manager
	managers                       int // started so far
	fleet                          *fleet
	statuses                       *statuses
	figures                        figures
	most                           float64 // MiB resident of any manager
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.limit, errSlow)
	defer cancel()
	b := &bench{options: o, progress: stderr, began: time.Now(), fleet: &fleet{}}
	conditions := b.conditions()
	if b.dir, err = os.MkdirTemp("", "tallyman-scale-"); err != nil {
		return err
	}
	// What was measured before a failure is worth to be seen.
	err = errors.Join(b.measure(ctx), b.print(stdout, conditions))
	switch {
	case err != nil:
		return fmt.Errorf("%w (the logs are in %s)", err, b.dir)
	case o.check && !b.figures.hold():
		err = errTargets
	}
	return errors.Join(err, os.RemoveAll(b.dir))
}

func (b *bench) print(w io.Writer, conditions []string) error {
	if b.output == "json" {
		return b.figures.writeJSON(w, conditions)
	}
	return b.figures.writeTable(w, conditions)
}

// conditions are what the figures depend on.
func (b *bench) conditions() []string {
	load, _ := os.ReadFile("/proc/loadavg") // shown only
	first, _, _ := strings.Cut(string(load), " ")
	return []string{
		fmt.Sprintf("%d policies in %d namespaces", b.policies, b.namespaces), fmt.Sprintf("%d watchers", b.watchers),
		runtime.Version(), fmt.Sprintf("%d cores", runtime.NumCPU()), "load before " + first,
	}
}

// say tells how far the run is.
func (b *bench) say(format string, args ...any) {
	_, _ = fmt.Fprintf(b.progress, "%4.0f s  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}

// names are those of the namespaces.
func (b *bench) names() []string {
	names := make([]string, b.namespaces)
	for i := range names {
		names[i] = namespaceName(i)
	}
	return names
}

// measure goes through a run, and ends what it has started.
func (b *bench) measure(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, b.cleanUp()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before the API server ends, which waits for those who watch
	if err := b.prepare(ctx); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{
		b.adopt, b.crowd, b.joinAll, b.rest, b.restart, b.edit, b.batch,
	} {
		if err := step(ctx); err != nil {
			return err
		}
		if err := b.noteMemory(); err != nil {
			return err
		}
	}
	b.figures.add("manager: resident at most", b.most, "MiB")
	return b.figures.complete()
}

func (b *bench) cleanUp() error {
	b.say("cleaning up")
	b.fleet.leave()
	if b.manager != nil {
		b.manager.stop()
	}
	if b.redis != nil {
		b.redis.stop()
	}
	if b.plane != nil {
		return b.plane.Stop()
	}
	return nil
}

// noteMemory remembers the most that a manager has had.
func (b *bench) noteMemory() error {
	_, most, err := b.manager.resident()
	b.most = max(b.most, most)
	return err
}
