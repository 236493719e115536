package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
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
	flags.IntVar(&o.watchers, "watchers", 1_000, "`number` of watching sidecars, in all namespaces together; then so many more in one")
	flags.IntVar(&o.edits, "edits", 100, "`number` of edits, one after the other; and a fifth of that with all watchers in one namespace")
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
	if err := b.measure(ctx); err != nil {
		return fmt.Errorf("%w (the logs are in %s)", err, b.dir)
	}
	if err := os.RemoveAll(b.dir); err != nil {
		return err
	}
	if o.output == "json" {
		err = b.figures.writeJSON(stdout, conditions)
	} else {
		err = b.figures.writeTable(stdout, conditions)
	}
	if err == nil && o.check && !b.figures.hold() {
		err = errTargets
	}
	return err
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
		b.adopt, b.joinAll, b.rest, b.restart, b.edit, b.batch, b.crowd,
	} {
		if err := step(ctx); err != nil {
			return err
		}
		if err := b.noteMemory(); err != nil {
			return err
		}
	}
	b.figures.add("manager: resident at most", b.most, "MiB")
	return nil
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

// prepare starts all but the manager, and creates all that it will find.
func (b *bench) prepare(ctx context.Context) error {
	b.say("building the manager, starting Redis, etcd and kube-apiserver")
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("find the repository (run this inside of it): %w", err)
	}
	b.root, b.kubeconfig = strings.TrimSpace(string(out)), filepath.Join(b.dir, "kubeconfig")
	if b.program, err = buildManager(ctx, b.root, b.dir); err != nil {
		return err
	}
	if b.redis, err = startRedis(ctx, b.dir); err != nil {
		return err
	}
	if b.plane, err = testenv.New(); err != nil {
		return err
	}
	if err := b.plane.WriteKubeconfig(b.kubeconfig); err != nil {
		return err
	}
	scheme := clientgoscheme.Scheme
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return err
	}
	b.plane.Config.QPS = -1 // no limit
	if b.api, err = client.New(b.plane.Config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	b.say("creating %d policies and %d pods in %d namespaces", b.policies, b.watchers, b.namespaces)
	if err := b.createNamespaces(ctx, b.names(), b.watchers/b.namespaces, b.policies/b.namespaces); err != nil {
		return err
	}
	b.statuses, err = follow(ctx, b.plane.Config, scheme)
	return err
}

// adopt starts a manager for policies that are all new to it.
func (b *bench) adopt(ctx context.Context) (err error) {
	b.say("starting a manager that has seen none of them")
	if b.manager, err = b.startManager(); err != nil {
		return err
	}
	before, err := apiWrites(ctx, b.plane.Config)
	if err != nil {
		return err
	}
	if err := b.statuses.awaitProgrammed(ctx, b.policies); err != nil {
		return err
	}
	b.figures.add("adoption of new policies: took", time.Since(b.manager.began).Seconds(), "s")
	if err := b.addCPU("adoption of new policies"); err != nil {
		return err
	}
	return b.addWrites(ctx, "adoption of new policies: API writes", before)
}

// addCPU adds the CPU time that the manager has had since it was started, which others
// who use the machine do not make longer.
func (b *bench) addCPU(name string) error {
	cpu, err := b.manager.cpu()
	b.figures.add(name+": manager's CPU", cpu.Seconds(), "s")
	return err
}

// addWrites adds what was written to the API server since.
func (b *bench) addWrites(ctx context.Context, name string, before map[string]float64) error {
	after, err := apiWrites(ctx, b.plane.Config)
	if err != nil {
		return err
	}
	total := 0.0
	for _, what := range slices.Sorted(maps.Keys(after)) {
		if n := after[what] - before[what]; n > 0 {
			b.say("  %s %.0f", what, n)
			total += n
		}
	}
	b.figures.add(name, total, "")
	return nil
}

// joinAll starts the watchers.
func (b *bench) joinAll(ctx context.Context) error {
	b.say("starting %d watchers", b.watchers)
	before, err := apiWrites(ctx, b.plane.Config)
	if err != nil {
		return err
	}
	began := time.Now()
	for _, ns := range b.names() {
		if err := b.fleet.join(ctx, b.redis.url(), ns, b.watchers/b.namespaces); err != nil {
			return err
		}
	}
	if err := b.fleet.awaitReady(ctx); err != nil {
		return err
	}
	b.figures.add("all watchers start: ready after", time.Since(began).Seconds(), "s")
	if err := b.statuses.awaitEnforced(ctx, b.policies); err != nil {
		return err
	}
	b.figures.add("all watchers start: all statuses say so after", time.Since(began).Seconds(), "s")
	return b.addWrites(ctx, "all watchers start: API writes", before)
}

// rest looks at a cluster in which nothing happens.
func (b *bench) rest(ctx context.Context) error {
	b.say("looking at an idle cluster for %s", b.idle)
	api, err := apiWrites(ctx, b.plane.Config)
	if err != nil {
		return err
	}
	from, err := b.redis.read(ctx)
	if err != nil {
		return err
	}
	cpu, err := b.manager.cpu()
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(b.idle):
	}
	to, err := b.redis.read(ctx)
	if err != nil {
		return err
	}
	later, err := b.manager.cpu()
	if err != nil {
		return err
	}
	seconds := to.at.Sub(from.at).Seconds()
	if err := b.addWrites(ctx, "idle: API writes", api); err != nil {
		return err
	}
	b.figures.add("idle: Redis writes, without heartbeats", float64(writesBesideHeartbeats(from, to)), "")
	b.figures.add("idle: Redis, script calls", calls(from, to, "evalsha")/seconds, "/s")
	b.figures.add("idle: Redis, CPU", 100*(to.cpu-from.cpu).Seconds()/seconds, "% of a core")
	b.figures.add("idle: Redis, memory", to.memory, "MiB")
	b.figures.add("idle: Redis, memory of that for connections", to.buffers, "MiB")
	b.figures.add("idle: Redis, connections", to.clients, "")
	b.figures.add("idle: manager, CPU", 100*(later-cpu).Seconds()/seconds, "% of a core")
	return b.addManager(ctx, "idle")
}

// addManager adds the manager's memory.
func (b *bench) addManager(ctx context.Context, when string) error {
	now, _, err := b.manager.resident()
	if err != nil {
		return err
	}
	heap, err := b.manager.heap(ctx)
	b.figures.add(when+": manager, resident", now, "MiB")
	b.figures.add(when+": manager, heap", heap, "MiB")
	return err
}

// restart replaces the manager, to which nothing is new.
func (b *bench) restart(ctx context.Context) (err error) {
	b.say("starting another manager, for which nothing has changed")
	b.manager.stop()
	before, err := apiWrites(ctx, b.plane.Config)
	if err != nil {
		return err
	}
	from, err := b.redis.read(ctx)
	if err != nil {
		return err
	}
	if b.manager, err = b.startManager(); err != nil {
		return err
	}
	if err := b.manager.awaitReconciles(ctx, b.namespaces); err != nil {
		return err
	}
	b.figures.add("start over unchanged policies: took", time.Since(b.manager.began).Seconds(), "s")
	if err := b.addCPU("start over unchanged policies"); err != nil {
		return err
	}
	to, err := b.redis.read(ctx)
	if err != nil {
		return err
	}
	b.figures.add("start over unchanged policies: Redis writes", float64(writesBesideHeartbeats(from, to)), "")
	return b.addWrites(ctx, "start over unchanged policies: API writes", before)
}

// edit edits policies here and there.
func (b *bench) edit(ctx context.Context) error {
	b.say("editing a policy %d times", b.edits)
	// Any will do, but each run's are the same.
	random := rand.New(rand.NewPCG(1, 2))
	keys := make([]types.NamespacedName, b.edits)
	for i := range keys {
		keys[i] = types.NamespacedName{
			Namespace: namespaceName(random.IntN(b.namespaces)), Name: policyName(random.IntN(b.policies / b.namespaces)),
		}
	}
	s, err := b.editsOf(ctx, b.edits, b.watchers/b.namespaces, func(i int) types.NamespacedName { return keys[i] })
	if err != nil {
		return err
	}
	b.addEdits("edit", s)
	return nil
}

func (b *bench) addEdits(name string, s samples) {
	b.figures.add(name+": enforced by a watcher, p50", percentile(s.each, 0.5), "ms")
	b.figures.add(name+": enforced by a watcher, p99", percentile(s.each, 0.99), "ms")
	b.figures.add(name+": enforced by all watchers, p50", percentile(s.all, 0.5), "ms")
	b.figures.add(name+": enforced by all watchers, p99", percentile(s.all, 0.99), "ms")
	if len(s.status) == 1 {
		return // all were of one policy, and its last status is no distribution
	}
	b.figures.add(name+": status says so, p50", percentile(s.status, 0.5), "ms")
	b.figures.add(name+": status says so, p99", percentile(s.status, 0.99), "ms")
}

// batch edits all policies of a namespace at once, as who applies a directory does.
func (b *bench) batch(ctx context.Context) error {
	names := make([]string, b.policies/b.namespaces)
	for i := range names {
		names[i] = policyName(i)
	}
	b.say("editing the %d policies of a namespace at once", len(names))
	from, err := b.redis.read(ctx)
	if err != nil {
		return err
	}
	e, err := b.editPolicies(ctx, namespaceName(0), names, b.watchers/b.namespaces)
	if err != nil {
		return err
	}
	to, err := b.redis.read(ctx)
	if err != nil {
		return err
	}
	var s samples
	s.add(e)
	b.figures.add("edit of a whole namespace: enforced by all watchers", s.all[0], "ms")
	b.figures.add("edit of a whole namespace: revisions", calls(from, to, "publish"), "")
	return b.statuses.awaitEnforced(ctx, b.policies)
}

// crowd adds a namespace with one policy and as many watchers as all others have.
func (b *bench) crowd(ctx context.Context) error {
	const ns = "crowd"
	b.say("starting %d watchers more, all in one namespace", b.watchers)
	if err := b.createNamespaces(ctx, []string{ns}, 0, 1); err != nil {
		return err
	}
	if err := each(ctx, b.watchers, func(ctx context.Context, i int) error { return b.createPod(ctx, ns, podName(i)) }); err != nil {
		return err
	}
	if err := b.fleet.join(ctx, b.redis.url(), ns, b.watchers); err != nil {
		return err
	}
	if err := b.fleet.awaitReady(ctx); err != nil {
		return err
	}
	if err := b.statuses.awaitEnforced(ctx, b.policies+1); err != nil {
		return err
	}
	b.say("editing its policy %d times", b.edits/5)
	only := types.NamespacedName{Namespace: ns, Name: policyName(0)}
	s, err := b.editsOf(ctx, b.edits/5, b.watchers, func(int) types.NamespacedName { return only })
	if err != nil {
		return err
	}
	b.addEdits("one namespace", s)
	return nil
}
