package store

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// DefaultPollInterval is how often a watcher asks when no event arrives:
	// pub/sub loses messages.
	DefaultPollInterval = 5 * time.Second
	// loadTimeout bounds one read of the definitions.
	loadTimeout = 3 * time.Second
)

// WatchOptions shape a watcher; the zero value is fine.
type WatchOptions struct {
	// PollInterval between reads without an event; DefaultPollInterval if zero.
	// Each wait varies by ±10 %, so that watchers do not ask all at once.
	PollInterval time.Duration
	// OnError is told of reads that failed; the watcher goes on. Optional.
	OnError func(error)
	// OnGarbage is told of a message that no publisher of ours sends, from
	// another goroutine than the rest. Optional.
	OnGarbage func()
}

// Watcher follows what is published for a namespace.
type Watcher struct {
	store      *Store
	namespace  string
	onSnapshot func(Snapshot)
	options    WatchOptions

	// news is of size 1: what comes in during a read is answered by one more. It is
	// the revision that was told of; zero for none.
	news     chan Revision
	ready    chan struct{}
	isReady  sync.Once
	loadedAt atomic.Int64
	seen     atomic.Pointer[Revision]
	known    known // by read only
}

// NewWatcher returns a watcher that calls onSnapshot, from one goroutine, with
// each new revision. It is not called when the store has no revision: what was
// known before stays true until the manager has published again.
func NewWatcher(s *Store, namespace string, onSnapshot func(Snapshot), options WatchOptions) *Watcher {
	if options.PollInterval == 0 {
		options.PollInterval = DefaultPollInterval
	}
	if options.OnError == nil {
		options.OnError = func(error) {}
	}
	if options.OnGarbage == nil {
		options.OnGarbage = func() {}
	}
	w := &Watcher{
		store: s, namespace: namespace, onSnapshot: onSnapshot, options: options,
		news: make(chan Revision, 1), ready: make(chan struct{}),
	}
	w.seen.Store(&Revision{})
	return w
}

// Ready is closed after the first read that succeeded, whatever it found.
func (w *Watcher) Ready() <-chan struct{} { return w.ready }

// LoadedAt is the time of the last read that succeeded; zero before the first.
func (w *Watcher) LoadedAt() time.Time {
	if micros := w.loadedAt.Load(); micros != 0 {
		return time.UnixMicro(micros)
	}
	return time.Time{}
}

// Run watches until the context ends, which is no error. The store may be down
// at any time. It is called once.
func (w *Watcher) Run(ctx context.Context) error {
	var listener sync.WaitGroup
	defer listener.Wait()
	listener.Go(func() { w.listen(ctx) })

	failures := 0
	var told Revision
	for {
		wait := jitter(w.options.PollInterval)
		if err := w.read(ctx, told); err != nil {
			failures++
			wait = backoff(failures, w.options.PollInterval)
		} else {
			failures = 0
		}
		told = Revision{}
		select {
		case <-ctx.Done():
			return nil
		case told = <-w.news:
		case <-time.After(wait):
		}
	}
}

// hears takes a message of the channel.
func (w *Watcher) hears(message any) {
	event, ok := message.(*redis.Message)
	if !ok { // subscribed: there was no event for what came before
		w.wake(Revision{})
		return
	}
	text, found := strings.CutPrefix(event.Payload, "revision ")
	revision, err := ParseRevision(text)
	if !found || err != nil {
		w.options.OnGarbage()
		return
	}
	// Events that came in while a read was under way are answered by it.
	if revision != *w.seen.Load() {
		w.wake(revision)
	}
}

func (w *Watcher) wake(told Revision) {
	select {
	case w.news <- told:
	default:
	}
}

// read hands over what is new in the store, which may have told of a revision.
func (w *Watcher) read(ctx context.Context, told Revision) error {
	timeout, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	if err := w.loadIfNew(timeout, told); err != nil {
		if ctx.Err() == nil {
			w.options.OnError(fmt.Errorf("watch: %w", err))
		}
		return err
	}
	w.loadedAt.Store(time.Now().UnixMicro())
	w.isReady.Do(func() { close(w.ready) })
	return nil
}

// loadIfNew reads the definitions only under a revision that it has not seen:
// a poll costs next to nothing. Who was told of a later one need not ask.
//
// An order of revisions is not insisted on: after the loss of a store, another
// with an earlier clock is the truth.
func (w *Watcher) loadIfNew(ctx context.Context, told Revision) error {
	seen := *w.seen.Load()
	if told.Compare(seen) <= 0 {
		revision, err := w.store.revision(ctx, w.namespace)
		if err != nil || revision.IsZero() || revision == seen {
			return err
		}
	}
	snapshot, definitions, err := w.store.load(ctx, w.namespace, w.known)
	if err != nil || snapshot.Revision.IsZero() || snapshot.Revision == seen {
		return err
	}
	w.known = definitions
	w.seen.Store(&snapshot.Revision)
	w.onSnapshot(snapshot)
	return nil
}
