package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/tallyman-dev/tallyman/internal/operator"
	"github.com/tallyman-dev/tallyman/internal/reach"
	"github.com/tallyman-dev/tallyman/internal/view"
)

const topLong = `Show how many requests a second each limit admits and refuses, and whose they are:
all sidecars of the namespace are asked at intervals, and their counts are summed. The
most refused are first.

Sidecars count keys while they are asked, and not before: the first figures come after
an interval. Values of headers, cookies, query parameters and expressions are shown as
hashes, as they are in Redis, unless --reveal shows the values.

On a terminal the screen is redrawn; elsewhere each interval is appended. With -o json
each interval is a line.

The exit code is 0, also after an interrupt, 1 when the cluster could not be asked or no
sidecar answered, and 2 when an argument is not valid.`

const topExample = `  # Who is hitting the limits?
  kubectl tallyman top

  # The limits of one policy, without the keys
  kubectl tallyman top orders --by limit

  # Once, for a program
  kubectl tallyman top --once -o json`

const (
	// listInterval is how often top looks for new pods.
	listInterval = 10 * time.Second
	// appendedRows is how many rows are shown of an interval that is no screen.
	appendedRows = 20
	// linesAround is how many lines of a screen are no rows, if all sidecars answer.
	linesAround = 6
	// clearScreen and home are for terminals.
	clearScreen, home = "\x1b[2J", "\x1b[H\x1b[J"
)

// topOptions are the flags of top.
type topOptions struct {
	cluster       *clusterOptions
	sidecar       string
	allNamespaces bool
	by            string
	interval      time.Duration
	once          bool
	reveal        bool
	output        outputFormat
}

func newTopCommand() *cobra.Command {
	o := topOptions{cluster: newClusterOptions()}
	c := &cobra.Command{
		Use:     "top [POLICY]",
		Short:   "Show who is admitted and refused, live",
		Long:    topLong,
		Example: topExample,
		Args:    cobra.MaximumNArgs(1),

		ValidArgsFunction: o.cluster.complete(proposePolicies),
		RunE: func(c *cobra.Command, args []string) error {
			policy := ""
			if len(args) > 0 {
				policy = args[0]
			}
			return o.run(c.Context(), policy, c.OutOrStdout())
		},
	}
	flags := c.Flags()
	flags.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "ask the sidecars of all namespaces")
	flags.StringVar(&o.by, "by", "key", "what rows are of: `limit or key`")
	flags.DurationVar(&o.interval, "interval", 2*time.Second, "`time` between two questions, from 500ms to 10s")
	flags.BoolVar(&o.once, "once", false, "show one interval, and end")
	flags.BoolVar(&o.reveal, "reveal", false, "show the values of keys, which may be secrets of clients")
	_ = c.RegisterFlagCompletionFunc("by", cobra.FixedCompletions([]string{"key", "limit"}, cobra.ShellCompDirectiveNoFileComp))
	sidecarFlag(c, &o.sidecar)
	o.output.addTo(c)
	o.cluster.addTo(c)
	return c
}

func (o *topOptions) check() error {
	switch {
	case o.by != "key" && o.by != "limit":
		return fmt.Errorf("--by is %q: write limit or key", o.by)
	case o.interval < 500*time.Millisecond || o.interval > 10*time.Second:
		// Sidecars stop counting when nobody asks for operator.TopPatience.
		return fmt.Errorf("--interval is %v: write a time from 500ms to 10s", o.interval)
	case o.sidecar != "" && o.allNamespaces:
		return errors.New("--sidecar is in no namespace: it does not go with --all-namespaces")
	}
	return nil
}

func (o *topOptions) run(ctx context.Context, policy string, stdout io.Writer) error {
	if err := o.check(); err != nil {
		return err
	}
	watch := topWatch{options: o, policy: policy, out: stdout}
	var err error
	if o.sidecar != "" {
		watch.fleet, err = ofURL(o.sidecar)
	} else {
		watch.fleet = &fleet{}
		watch.cluster, err = o.cluster.connect()
	}
	if err != nil {
		return err
	}
	defer watch.fleet.close()
	err = watch.run(ctx)
	if ctx.Err() != nil {
		return nil // so it is ended
	}
	return err
}

// topWatch is a run of top.
type topWatch struct {
	options *topOptions
	policy  string
	out     io.Writer
	cluster *cluster // nil without one
	fleet   *fleet
	listed  time.Time
	meter   view.Meter
	shown   bool // something
}

func (w *topWatch) run(ctx context.Context) error {
	tick := time.NewTicker(w.options.interval)
	defer tick.Stop()
	for first := true; ; first = false {
		if err := w.update(ctx); err != nil {
			return err
		}
		rates := w.meter.Rates(time.Now(), w.policy, w.samples(ctx))
		switch {
		case ctx.Err() != nil:
			return nil
		case rates.Pods == 0 && first:
			return failure{w.whyNone(rates)}
		case !first:
			if err := w.show(rates); err != nil || w.options.once {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// update looks for new pods.
func (w *topWatch) update(ctx context.Context) error {
	if w.cluster == nil || time.Since(w.listed) < listInterval {
		return nil
	}
	namespace := w.cluster.namespace
	if w.options.allNamespaces {
		namespace = ""
	}
	pods, err := w.cluster.pods(ctx, namespace)
	if err != nil {
		return err
	}
	w.fleet.update(ctx, w.cluster, pods)
	w.listed = time.Now()
	return nil
}

func (w *topWatch) samples(ctx context.Context) []view.Sample {
	answers := askAll(ctx, w.fleet, func(ctx context.Context, c *reach.Client) (operator.Top, error) {
		return c.Top(ctx, w.options.reveal)
	})
	samples := make([]view.Sample, len(answers))
	for i, a := range answers {
		samples[i] = view.Sample{Namespace: a.namespace, Pod: a.pod, Top: a.answer, Err: a.err}
	}
	return samples
}

// whyNone says why no sidecar answered.
func (w *topWatch) whyNone(r view.Rates) error {
	switch {
	case len(r.Unanswered) > 0:
	case w.options.allNamespaces:
		return errors.New("no pod has a sidecar: kubectl tallyman explain POD tells why")
	default:
		return fmt.Errorf("no pod of namespace %s has a sidecar: kubectl tallyman explain POD tells why, and --namespace names another one",
			w.cluster.namespace)
	}
	first := r.Unanswered[0]
	if first.Pod == "" {
		return fmt.Errorf("the sidecar did not answer: %s", first.Error)
	}
	return fmt.Errorf("none of %s answered: pod %s: %s", view.Count(len(r.Unanswered), "sidecar"), first.Pod, first.Error)
}

// show writes an interval: a screen, a text or a value.
func (w *topWatch) show(r view.Rates) error {
	o := view.TopOptions{
		Style: styleOf(w.out), ByKey: w.options.by == "key", Namespaces: w.options.allNamespaces, Rows: appendedRows,
		Revealed: w.options.reveal,
	}
	var err error
	switch format := w.options.output; format {
	case formatJSON:
		err = json.NewEncoder(w.out).Encode(r)
	case formatYAML:
		if _, err = io.WriteString(w.out, "---\n"); err == nil {
			err = format.write(w.out, r, nil)
		}
	default:
		if height := screen(w.out); height > 0 && !w.options.once {
			o.Rows = max(1, height-linesAround)
			err = w.redraw()
		} else if w.shown {
			_, err = io.WriteString(w.out, "\n")
		}
		if err == nil {
			err = r.WriteText(w.out, o)
		}
	}
	w.shown = true
	if err != nil {
		return failure{err}
	}
	return nil
}

func (w *topWatch) redraw() error {
	codes := home
	if !w.shown {
		codes = clearScreen + home
	}
	_, err := io.WriteString(w.out, codes)
	return err
}

// screen is the height of a terminal that can be redrawn, in lines; 0 of all else.
func screen(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	_, height, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return height
}
