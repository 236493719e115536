package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// errTargets means that all was measured, and a target does not hold.
var errTargets = errors.New("targets failed")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := dispatch(ctx, os.Args[1:])
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	default:
		_, _ = fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// dispatch does what the first argument says where this program is one of the
// processes of a run, and else runs.
func dispatch(ctx context.Context, args []string) error {
	switch {
	case len(args) == 1 && args[0] == workerCommand:
		return work(ctx, os.Stdin, os.Stdout)
	case len(args) == 1 && args[0] == clientsCommand:
		return visit(os.Stdin, os.Stdout)
	case len(args) == 2 && args[0] == appCommand:
		return serveApp(args[1])
	case len(args) == 3 && args[0] == reverseProxyCommand:
		return serveReverseProxy(args[1], args[2])
	default:
		return run(ctx, args, os.Stdout, os.Stderr)
	}
}

// options are the flags.
type options struct {
	cases       []string // prefixes of names; empty: all
	contestants []string // only these; empty: all
	callers     []int    // of the exact cases
	repeat      int
	duration    time.Duration // of one sample of a load
	windows     int           // seconds of each case with several processes
	counters    int           // of the bytes case
	retakes     int           // of one sample at the most
	json        bool
	check       bool
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	cases := flags.String("cases", "", "only cases whose names begin with one of these, such as exact/10k,leased")
	contestants := flags.String("contestants", "", "only these, such as tallyman,redis_rate")
	callers := flags.String("callers", "1,64,256", "numbers of callers in the exact cases")
	quick := flags.Bool("quick", false, "a look of a minute or so: fewer cases, short samples, two repeats")
	flags.IntVar(&o.repeat, "repeat", 5, "samples of each contestant in each case, of which the median counts")
	flags.DurationVar(&o.duration, "duration", 300*time.Millisecond, "length of a sample, after a warm-up of a third of it")
	flags.IntVar(&o.windows, "windows", 5, "seconds of each case with several processes")
	flags.IntVar(&o.counters, "counters", 100_000, "counters of the bytes case")
	flags.IntVar(&o.retakes, "retakes", 2, "how often a sample is taken again while others use more than a quarter of a core")
	flags.BoolVar(&o.json, "json", false, "print all samples as JSON instead of tables")
	flags.BoolVar(&o.check, "check", false, "compare with the targets, and fail if one does not hold")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: all is said by flags", flags.Arg(0))
	}
	o.cases, o.contestants = list(*cases), list(*contestants)
	for _, name := range o.contestants {
		if _, err := contestantNamed(name); err != nil {
			return o, fmt.Errorf("--contestants: %w", err)
		}
	}
	for _, text := range list(*callers) {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 10_000 {
			return o, fmt.Errorf("--callers: %q is not a number in 1..10000", text)
		}
		o.callers = append(o.callers, n)
	}
	if o.repeat < 1 || o.duration < 10*time.Millisecond || o.windows < 1 || o.counters < few || o.retakes < 0 {
		return o, fmt.Errorf("--repeat and --windows must be 1 or more, --duration 10ms, --counters %d, --retakes 0", few)
	}
	if *quick {
		o.hurry()
	}
	return o, nil
}

// quickCases are those that say the most.
var quickCases = []string{"exact/hot/64", "exact/10k/1", "exact/10k/64", "limits", "denied/hot/2", "leased", proxyCase, steadyCase, bytesCase}

func (o *options) hurry() {
	if len(o.cases) == 0 {
		o.cases = quickCases
	}
	o.repeat, o.duration, o.windows, o.counters, o.retakes = 2, 150*time.Millisecond, 1, 20_000, 0
}

func list(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// plan is what a run is to measure.
type plan struct {
	loads       []loadCase
	proxies     []proxyCaseOf
	shared      []sharedCase
	bytes       bool
	contestants []string // only these; empty: all
}

func (o *options) plan() (plan, error) {
	p := plan{
		loads:       slices.DeleteFunc(loadCases(o.callers), func(c loadCase) bool { return !chosen(c.name, o.cases) }),
		shared:      slices.DeleteFunc(sharedCases(o.windows), func(c sharedCase) bool { return !chosen(c.name, o.cases) }),
		proxies:     slices.DeleteFunc(proxyCases(), func(c proxyCaseOf) bool { return !chosen(c.name, o.cases) }),
		bytes:       chosen(bytesCase, o.cases),
		contestants: o.contestants,
	}
	if len(p.loads) == 0 && len(p.proxies) == 0 && len(p.shared) == 0 && !p.bytes {
		return p, fmt.Errorf("--cases: no case has a name that begins with one of %q", o.cases)
	}
	return p, nil
}

// includes tells whether the plan is to measure a contestant in a case.
func (p *plan) includes(caseName, contestant string) bool {
	return (len(p.contestants) == 0 || slices.Contains(p.contestants, contestant)) &&
		slices.Contains(p.contestantsOf(caseName), contestant)
}

// contestantsOf are those of a case, or none if it is not planned.
func (p *plan) contestantsOf(caseName string) []string {
	for _, c := range p.loads {
		if c.name == caseName {
			return c.contestants
		}
	}
	for _, c := range p.proxies {
		if c.name == caseName {
			return c.contestants
		}
	}
	for _, c := range p.shared {
		if c.name == caseName {
			return c.contestants
		}
	}
	if p.bytes && caseName == bytesCase {
		return storing
	}
	return nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	p, err := o.plan()
	if err != nil {
		return err
	}
	s, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	if s.peers, err = rlsPeerProcesses(); err != nil {
		return err
	}
	b := &bench{options: o, server: s, progress: stderr, results: results{}, histograms: make(histograms, 64)}
	if err := b.measure(ctx, p); err != nil {
		return err
	}
	if n, of := b.results.disturbed(); n > 0 {
		_, _ = fmt.Fprintf(stderr, "during %d of %d samples others used more than %v cores: repeat when the machine is free\n", n, of, quiet)
	}
	version, err := s.version(ctx)
	if err != nil {
		return err
	}
	if o.json {
		err = writeJSON(stdout, version, b.results)
	} else {
		writeTables(stdout, version, b.results, p)
	}
	if err == nil && o.check && !checkAll(stderr, targets, b.results, p.includes) {
		err = errTargets
	}
	return err
}

func (b *bench) measure(ctx context.Context, p plan) error {
	var repeated, once []step
	for _, c := range p.loads {
		repeated = append(repeated, b.loadStep(c))
	}
	if len(p.proxies) > 0 {
		proxies, err := b.openProxyBench(ctx)
		if err != nil {
			return err
		}
		defer proxies.close()
		for _, c := range p.proxies {
			if c.repeated {
				repeated = append(repeated, proxies.step(c))
			} else {
				once = append(once, proxies.step(c))
			}
		}
	}
	for _, c := range p.shared {
		once = append(once, b.sharedStep(c))
	}
	if p.bytes {
		once = append(once, b.bytesStep())
	}
	if err := b.rounds(ctx, b.repeat, repeated); err != nil {
		return err
	}
	return b.rounds(ctx, 1, once)
}

func writeTables(w io.Writer, redisVersion string, r results, p plan) {
	_, _ = fmt.Fprintf(w, "%s\n\n", strings.Join(environment(redisVersion), ", "))
	var rows []row
	for _, c := range p.loads {
		for _, name := range c.contestants {
			rows = append(rows, row{c.name, name, c.baseline})
		}
	}
	writeTable(w, r, rows, loadColumns)
	for _, c := range p.proxies {
		rows = nil
		for _, name := range c.contestants {
			rows = append(rows, row{c.name, name, proxyReverse})
		}
		writeTable(w, r, rows, c.columns)
	}
	rows = nil
	for _, c := range p.shared {
		for _, name := range c.contestants {
			rows = append(rows, row{c.name, name, ""})
		}
	}
	writeTable(w, r, rows, sharedColumns)
	rows = nil
	for _, name := range storing {
		rows = append(rows, row{bytesCase, name, ""})
	}
	writeTable(w, r, rows, bytesColumns)
}

func writeJSON(w io.Writer, redisVersion string, r results) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(map[string]any{"environment": environment(redisVersion), "results": r})
}

// environment is what a result depends on: versions and cores.
func environment(redisVersion string) []string {
	texts := []string{runtime.Version(), fmt.Sprintf("%d cores", runtime.NumCPU()), "Redis " + redisVersion}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return texts
	}
	for _, m := range info.Deps {
		if slices.Contains(named, m.Path) {
			texts = append(texts, strings.TrimPrefix(m.Path, "github.com/")+" "+m.Version)
		}
	}
	return texts
}

// named are the modules whose versions matter.
var named = []string{
	"github.com/redis/go-redis/v9", "github.com/go-redis/redis_rate/v10", "github.com/throttled/throttled/v2",
	"github.com/ulule/limiter/v3", "github.com/redis/rueidis", "golang.org/x/time",
}
