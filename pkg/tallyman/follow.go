package tallyman

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/tallyman-dev/tallyman/internal/store"
)

const (
	// beatTimeout bounds one report, and the withdrawal of reports.
	beatTimeout = 2 * time.Second
	// settleInterval is when a pod asks again how many there are after it has taken
	// over policies: those that did so after it are not in the first answer.
	settleInterval = 500 * time.Millisecond
	// shareHeld is how long a share is held when the store tells of fewer pods. A
	// store that lost its data knows all pods again after an interval; until then
	// each pod would take itself for one of few.
	shareHeld = store.BeatInterval + beatTimeout
)

// follower takes over what the manager publishes, and reports what is enforced.
type follower struct {
	limiter   *Limiter
	store     *store.Store
	namespace string
	prefix    string
	pod       string
	labels    map[string]string
	version   string
	logger    *slog.Logger

	watcher *store.Watcher
	pulse   *store.Pulse
	swapped chan struct{} // of size 1: something new is to be reported
	// failedAfter is the time of the last good read, if reads fail since.
	failedAfter atomic.Pointer[time.Time]
	beatFails   bool // the last heartbeat failed; by report only
	shares      atomic.Pointer[map[string]heldShare]
}

// heldShare is a pod's share of a policy's limits, which it holds until then,
// unless there are more pods.
type heldShare struct {
	store.Share
	until time.Time
}

// follow starts a follower.
func (l *Limiter) follow(ctx context.Context, s *store.Store, o Options) {
	f := &follower{
		limiter: l, store: s, namespace: o.Namespace, prefix: o.Prefix, pod: o.Pod, labels: o.Labels,
		version: programVersion(), logger: o.Logger, pulse: s.Pulse(o.Namespace), swapped: make(chan struct{}, 1),
	}
	f.watcher = store.NewWatcher(s, o.Namespace, f.takeOver, store.WatchOptions{
		OnError:   f.loadFailed,
		OnGarbage: o.Observer.EventIgnored,
	})
	l.follower, l.ready, l.loadedAt = f, f.watcher.Ready(), f.watcher.LoadedAt
	ctx, l.stop = context.WithCancel(context.WithoutCancel(ctx))
	l.running.Go(func() {
		if err := f.watcher.Run(ctx); err != nil {
			f.logger.Error("Definitions are not followed any more", "error", err)
		}
	})
	l.running.Go(func() { f.report(ctx) })
}

// takeOver makes what the store says the current snapshot.
func (f *follower) takeOver(from store.Snapshot) {
	last := f.limiter.current.Load()
	next := last.next(from, f.labels, f.prefix)
	f.limiter.current.Store(next)
	f.logger.Info("Took over definitions", "revision", next.revision.String(), "policies", next.generations())
	for name, reason := range next.rejected {
		f.logger.Warn("Rejected a definition", "policy", name, "reason", reason, "enforcesLastGood", next.find(name) != nil)
	}
	f.limiter.observer.DefinitionsLoaded(f.limiter.State())
	select {
	case f.swapped <- struct{}{}:
	default:
	}
}

// loadFailed logs that the store has gone away, or refuses us, once.
func (f *follower) loadFailed(err error) {
	last := f.watcher.LoadedAt()
	if f.failedAfter.Swap(&last) == nil {
		meanwhile := "the last good ones stay in force"
		if last.IsZero() {
			meanwhile = "until they can, none is in force, and this is not ready"
		}
		f.logger.Warn("The policies cannot be read from the store; "+meanwhile, "error", err)
	}
	f.limiter.observer.LoadFailed(err)
}

// noticeLoad logs that the store is back, once. The watcher does not tell of
// reads that found nothing new, but of their time.
func (f *follower) noticeLoad() {
	last := f.failedAfter.Load()
	if last != nil && !last.Equal(f.watcher.LoadedAt()) && f.failedAfter.CompareAndSwap(last, nil) {
		f.logger.Info("The store answers again")
	}
}

// report sends a heartbeat after the first load, after each swap and at
// intervals. Before the first load there is nothing true to say.
func (f *follower) report(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-f.watcher.Ready():
	}
	wait := settleInterval
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		f.beat(ctx)
		f.noticeLoad()
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-f.swapped:
			wait = settleInterval
		case <-timer.C:
			wait = store.BeatInterval
		}
	}
}

func (f *follower) beat(ctx context.Context) {
	timeout, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	s := f.limiter.current.Load()
	shares, err := f.pulse.Beat(timeout, store.Heartbeat{
		Pod: f.pod, Revision: s.revision, Policies: s.generations(), UIDs: s.uids(), Rejected: s.rejected, Version: f.version,
	})
	if err == nil {
		f.takeShares(shares, time.Now())
	}
	if ctx.Err() == nil {
		f.beaten(err)
	}
}

// takeShares makes what the store says this pod's shares.
func (f *follower) takeShares(told map[string]store.Share, now time.Time) {
	next := make(map[string]heldShare, len(told))
	for name, share := range told {
		if held := f.held(name); share.Live < held.Live && now.Before(held.until) {
			next[name] = held
			continue
		}
		next[name] = heldShare{share, now.Add(shareHeld)}
	}
	f.shares.Store(&next)
}

func (f *follower) held(policyName string) heldShare {
	if shares := f.shares.Load(); shares != nil {
		return (*shares)[policyName]
	}
	return heldShare{}
}

// share is how many live pods enforce a policy, and which of them, from 0, this
// one is. It is 0 pods before the store has told. It is safe for concurrent use,
// and quick.
func (f *follower) share(policyName string) (live, place int) {
	s := f.held(policyName)
	return s.Live, s.Place
}

// beaten logs when heartbeats begin to fail and when they no longer do, once
// each. They may fail alone: the store may let us read and not report.
func (f *follower) beaten(err error) {
	failed := err != nil
	if failed {
		f.limiter.observer.HeartbeatFailed(err)
	}
	switch {
	case failed == f.beatFails:
	case failed:
		f.logger.Warn("The store does not take heartbeats; the manager does not see what is enforced here", "error", err)
	default:
		f.logger.Info("The store takes heartbeats again")
	}
	f.beatFails = failed
}

func (f *follower) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	return f.store.Leave(ctx, f.namespace, f.pod)
}

// programVersion is that of the program that this is linked into.
func programVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return ""
}
