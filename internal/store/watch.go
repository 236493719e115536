package store

import (
	"context"
	"fmt"
	"math/rand/v2"
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
	// retryInterval is the wait after a read that failed.
	retryInterval = time.Second
)

// WatchOptions shape a watcher; the zero value is fine.
type WatchOptions struct {
	// PollInterval between reads without an event; DefaultPollInterval if zero.
	// Each wait varies by ±10 %, so that watchers do not ask all at once.
	PollInterval time.Duration
	// OnError is told of reads that failed; the watcher goes on. Optional.
	OnError func(error)
	// OnGarbage is told of a message that no publisher of ours sends. Optional.
	OnGarbage func()
}

// Watcher follows what is published for a namespace.
type Watcher struct {
	store      *Store
	namespace  string
	onSnapshot func(Snapshot)
	options    WatchOptions

	ready    chan struct{}
	isReady  sync.Once
	loadedAt atomic.Int64
	seen     Revision // by Run's goroutine only
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
	return &Watcher{store: s, namespace: namespace, onSnapshot: onSnapshot, options: options, ready: make(chan struct{})}
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
// at any time.
func (w *Watcher) Run(ctx context.Context) error {
	subscription := w.store.client.Subscribe(ctx, w.store.channel(w.namespace))
	defer subscription.Close()
	// The channel also tells when the subscription was made again after a lost
	// connection, which is the time to look for what was missed.
	messages := subscription.ChannelWithSubscriptions(redis.WithChannelSize(100))
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case message, open := <-messages:
			if !open {
				return nil
			}
			if !w.tellsNews(message) {
				continue
			}
		case <-timer.C:
		}
		timer.Reset(w.load(ctx))
	}
}

// tellsNews says whether a message is a reason to read the definitions.
func (w *Watcher) tellsNews(message any) bool {
	event, ok := message.(*redis.Message)
	if !ok {
		return true // subscribed, again perhaps
	}
	text, found := strings.CutPrefix(event.Payload, "revision ")
	revision, err := ParseRevision(text)
	if !found || err != nil {
		w.options.OnGarbage()
		return false
	}
	// Events that came in while a read was under way are answered by it.
	return revision != w.seen
}

// load reads the definitions and returns how long to wait for the next time.
func (w *Watcher) load(ctx context.Context) time.Duration {
	timeout, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	snapshot, err := w.store.Load(timeout, w.namespace)
	if err != nil {
		if ctx.Err() == nil {
			w.options.OnError(fmt.Errorf("watch: %w", err))
		}
		return jitter(min(retryInterval, w.options.PollInterval))
	}
	w.loadedAt.Store(time.Now().UnixMicro())
	// An order of revisions is not asked for: after the loss of a store, another
	// with an earlier clock is the truth.
	if !snapshot.Revision.IsZero() && snapshot.Revision != w.seen {
		w.seen = snapshot.Revision
		w.onSnapshot(snapshot)
	}
	w.isReady.Do(func() { close(w.ready) })
	return jitter(w.options.PollInterval)
}

// jitter varies a duration by ±10 %.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}
