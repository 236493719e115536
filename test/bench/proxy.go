package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tallyman-dev/tallyman/test/proc"
)

// The names of the cases of proxies.
const (
	proxyCase       = "proxy/64"  // as fast as they can
	proxyPacedCase  = "proxy/70%" // at 70 % of what they can
	proxyMemoryCase = "proxy/memory"
)

const proxyConnections = 64

// proxyCases are the cases and their contestants.
func proxyCases() []proxyCaseOf {
	all := []string{proxyDirect, proxyReverse, proxyTallyman, proxyLeased, proxyExact}
	if findNginx() != "" {
		all = append(all, proxyNginx)
	}
	return []proxyCaseOf{
		{proxyCase, all, (*proxyBench).saturate, true, proxyColumns},
		{proxyPacedCase, all[1:], (*proxyBench).pace, true, proxyPacedColumns},
		{proxyMemoryCase, []string{proxyTallyman, proxyLeased, proxyExact}, (*proxyBench).weigh, false, proxyMemoryColumns},
	}
}

// proxyCaseOf is one way to measure proxies.
type proxyCaseOf struct {
	name        string
	contestants []string
	sample      func(p *proxyBench, ctx context.Context, name string) (map[string]float64, error)
	repeated    bool
	columns     []column
}

// proxyBench measures proxies, each a process between an app and clients that are
// processes too.
type proxyBench struct {
	*bench
	site site
	app  *process
}

// openProxyBench builds the sidecar and starts the app. Whoever calls closes.
func (b *bench) openProxyBench(ctx context.Context) (p *proxyBench, err error) {
	p = &proxyBench{bench: b}
	if p.site.dir, err = os.MkdirTemp("", "bench-proxy-"); err != nil {
		return nil, err
	}
	p.site.redis = b.server.addr
	if p.site.sidecar, err = buildSidecar(ctx, p.site.dir); err == nil {
		p.app, err = startSelf(ctx, appCommand)
	}
	if err != nil {
		_ = os.RemoveAll(p.site.dir)
		return nil, err
	}
	p.site.app = p.app.addr
	return p, nil
}

func (p *proxyBench) close() {
	p.app.stop()
	_ = os.RemoveAll(p.site.dir)
}

func (p *proxyBench) step(c proxyCaseOf) step {
	return step{c.name, p.present(c.contestants), func(ctx context.Context, contestant contestant) (map[string]float64, error) {
		return p.quietest(func() (map[string]float64, error) { return c.sample(p, ctx, contestant.name) })
	}}
}

// start runs a proxy; of none, it is the app.
func (p *proxyBench) start(ctx context.Context, name string) (*process, error) {
	if name == proxyDirect {
		return &process{addr: p.app.addr, pid: p.app.pid, stop: func() {}}, nil
	}
	if err := p.server.empty(ctx); err != nil {
		return nil, err
	}
	return proxyStarts[name](ctx, p.site)
}

// saturate has clients ask as fast as they can.
func (p *proxyBench) saturate(ctx context.Context, name string) (map[string]float64, error) {
	proxy, err := p.start(ctx, name)
	if err != nil {
		return nil, err
	}
	defer proxy.stop()
	return p.visit(ctx, proxy, 0, p.proxyDuration())
}

// proxyDuration is longer than that of other samples: processes have to be started.
func (o *options) proxyDuration() time.Duration { return 4 * o.duration }

// pace has clients ask at 70 % of the rate that the proxy was measured to do, and the
// app without a proxy at the same rate. The difference is what the proxy adds.
func (p *proxyBench) pace(ctx context.Context, name string) (map[string]float64, error) {
	most, ok := p.results.median(proxyCase, name, throughput)
	if !ok {
		return nil, fmt.Errorf("without case %s it is not known what is 70 %%", proxyCase)
	}
	rate := 0.7 * most
	direct, err := p.visit(ctx, p.app, rate, p.proxyDuration())
	if err != nil {
		return nil, err
	}
	proxy, err := p.start(ctx, name)
	if err != nil {
		return nil, err
	}
	defer proxy.stop()
	values, err := p.visit(ctx, proxy, rate, p.proxyDuration())
	if err != nil {
		return nil, err
	}
	values[p50Added] = values[p50] - direct[p50]
	values[p99Added] = values[p99] - direct[p99]
	values[otherCPU] = max(values[otherCPU], direct[otherCPU])
	return values, nil
}

// memoryRate is the rate at which the memory under load is looked at.
const memoryRate = 10_000

// weigh looks at the memory of a proxy before it has served, and after some seconds of
// load.
func (p *proxyBench) weigh(ctx context.Context, name string) (map[string]float64, error) {
	proxy, err := p.start(ctx, name)
	if err != nil {
		return nil, err
	}
	defer proxy.stop()
	time.Sleep(time.Second) // in which it reads, watches and settles
	rest, err := memoryOf(proxy.pid, "VmRSS:")
	if err != nil {
		return nil, err
	}
	values, err := p.visit(ctx, proxy, memoryRate, 5*time.Second)
	if err != nil {
		return nil, err
	}
	peak, err := memoryOf(proxy.pid, "VmHWM:")
	if err != nil {
		return nil, err
	}
	program, err := os.Stat(p.site.sidecar)
	if err != nil {
		return nil, err
	}
	values[memoryAtRest], values[memoryAtPeak], values[programSize] = rest, peak, float64(program.Size())/1e6
	return values, nil
}

// memoryOf is a line of /proc/PID/status, in MiB.
func memoryOf(pid int, name string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return memoryIn(string(text), name)
}

func memoryIn(status, name string) (float64, error) {
	for line := range strings.Lines(status) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == name && fields[2] == "kB" {
			kib, err := strconv.ParseFloat(fields[1], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("read /proc/PID/status: no %s", name)
}

// visit has clients ask a process for a time, after a warm-up of a third of it.
func (p *proxyBench) visit(ctx context.Context, proxy *process, rate float64, d time.Duration) (map[string]float64, error) {
	took, err := p.spentBy(proxy)
	if err != nil {
		return nil, err
	}
	got, clients, err := send(ctx, visits{
		Addr: proxy.addr, Connections: proxyConnections, PerSecond: rate, WarmUp: d / 3, Duration: d,
	})
	if err != nil {
		return nil, err
	}
	until, err := p.spentBy(proxy)
	if err != nil {
		return nil, err
	}
	if got.Requests == 0 {
		return nil, errors.New("no request was answered")
	}
	return map[string]float64{
		throughput: float64(got.Requests) / got.Seconds,
		p50:        got.P50,
		p99:        got.P99,
		failures:   float64(got.Errors),
		proxyCPU:   (until.proxy - took.proxy).Seconds() * 1e6 / float64(got.All),
		redisCPU:   (until.redis - took.redis).Seconds() * 1e6 / float64(got.All),
		cpu:        (until.ours - took.ours + clients).Seconds() * 1e6 / float64(got.All),
		otherCPU: max(0, ((until.machine-took.machine)-(until.ours-took.ours)-clients).Seconds()/
			until.at.Sub(took.at).Seconds()),
	}, nil
}

// spent is the CPU time that was used up at a moment.
type spent struct {
	at                          time.Time
	proxy, redis, ours, machine time.Duration
}

// spentBy takes the CPU time of a proxy, and of all of us but the clients.
func (p *proxyBench) spentBy(proxy *process) (s spent, err error) {
	s.at = time.Now()
	if s.ours, err = cpuOfSelf(); err != nil {
		return s, err
	}
	cpus := map[int]time.Duration{proxy.pid: 0, p.app.pid: 0, p.server.pid: 0}
	for pid := range cpus {
		if cpus[pid], err = proc.CPU(pid); err != nil {
			return s, err
		}
		s.ours += cpus[pid]
	}
	s.proxy, s.redis = cpus[proxy.pid], cpus[p.server.pid]
	s.machine, err = cpuOfMachine()
	return s, err
}
