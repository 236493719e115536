package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/testenv"
)

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

// addWrites adds what was written to the API server since, once that has come to an
// end: events are written in the background.
func (b *bench) addWrites(ctx context.Context, name string, before map[string]float64) error {
	after, err := b.settledWrites(ctx)
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

// settledWrites waits until nothing is written for a second.
func (b *bench) settledWrites(ctx context.Context) (writes map[string]float64, err error) {
	settled := func() bool {
		last := writes
		writes, err = apiWrites(ctx, b.plane.Config)
		return err != nil || maps.Equal(last, writes)
	}
	if waiting := poll(ctx, time.Second, settled); waiting != nil {
		return nil, waiting
	}
	return writes, err
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

// crowd has all watchers in one namespace, with one policy, and then removes them.
func (b *bench) crowd(ctx context.Context) error {
	const ns = "crowd"
	b.say("starting %d watchers, all in one namespace", b.watchers)
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
	if err := b.statuses.awaitEnforced(ctx, 1); err != nil {
		return err
	}
	b.say("editing its policy %d times", b.edits/5)
	only := types.NamespacedName{Namespace: ns, Name: policyName(0)}
	s, err := b.editsOf(ctx, b.edits/5, b.watchers, func(int) types.NamespacedName { return only })
	if err != nil {
		return err
	}
	b.addEdits("one namespace", s)
	b.fleet.leave()
	if err := b.api.Delete(ctx, newPolicy(ns, only.Name)); err != nil {
		return err
	}
	return b.api.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(ns), client.GracePeriodSeconds(0))
}
