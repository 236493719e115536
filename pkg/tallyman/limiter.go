package tallyman

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tallyman-dev/tallyman/internal/limiter"
	"github.com/tallyman-dev/tallyman/internal/store"
)

// Limiter admits and refuses requests. Create it with New; it is safe for
// concurrent use.
type Limiter struct {
	engine       *limiter.Engine
	current      atomic.Pointer[snapshot]
	ready        <-chan struct{}
	loadedAt     func() time.Time
	random       func(n int64) int64 // one of 0..n-1
	trustedHops  int
	probeSources []netip.Prefix
	logger       *slog.Logger
	observer     Observer
	tops         tops

	follower *follower // nil with a policy file
	redis    *limiter.Redis
	client   io.Closer // nil with MemoryStore, as redis is
	// storeFails says that the store failed to answer the last call.
	storeFails atomic.Bool
	stop       context.CancelFunc
	running    sync.WaitGroup
	closed     sync.Once
}

// New starts a limiter, which the caller closes. ctx has values for what runs
// in the background; its end does not stop it.
//
// A Redis that is down is no error: the limiter waits for it, see Ready. A
// policy file with a fault is an error that names the line, the policy and
// the field.
func New(ctx context.Context, o Options) (*Limiter, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Limiter{
		random: rand.Int64N, trustedHops: o.TrustedHops, probeSources: o.ProbeSources,
		logger: o.Logger, observer: o.Observer, stop: func() {},
	}
	l.current.Store(&snapshot{})
	if o.PolicyFile != "" {
		if err := l.loadFile(o); err != nil {
			return nil, err
		}
	}
	if o.Store == MemoryStore {
		l.engine = l.newEngine(limiter.NewMemory(time.Now))
		return l, nil
	}
	client, err := store.Connect(store.ConnectOptions{
		URL: o.Store, Username: o.Username, Password: o.Password, TLS: store.TLSOptions(o.TLS),
	})
	if err != nil {
		return nil, err
	}
	l.client = client
	l.redis = limiter.NewRedis(client, limiter.RedisOptions{Hooks: limiter.Hooks{
		Corrupt:        func(string) { o.Observer.CounterCorrupt() },
		Sent:           o.Observer.StoreSent,
		BreakerChanged: o.Observer.CircuitChanged,
		GivenBack: func(_ int64, err error) {
			if err != nil {
				o.Observer.UnitsLost()
			}
		},
	}})
	l.engine = l.newEngine(l.redis)
	if o.PolicyFile == "" {
		l.follow(ctx, store.New(client, o.Prefix), o)
	}
	return l, nil
}

// loadFile enforces the policies of a file, once and for all.
func (l *Limiter) loadFile(o Options) error {
	policies, err := readFile(o.PolicyFile, o.Namespace, o.Prefix)
	if err != nil {
		return err
	}
	l.current.Store(&snapshot{policies: policies})
	ready, loaded := make(chan struct{}), time.Now()
	close(ready)
	l.ready, l.loadedAt = ready, func() time.Time { return loaded }
	l.observer.DefinitionsLoaded(l.State())
	return nil
}

// Ready is closed once the definitions are known: they have been read from the
// file, or have been asked for and answered by Redis. It stays closed, also
// when Redis fails later: the last good definitions go on to be enforced.
func (l *Limiter) Ready() <-chan struct{} { return l.ready }

// IsReady says whether Ready is closed.
func (l *Limiter) IsReady() bool {
	select {
	case <-l.ready:
		return true
	default:
		return false
	}
}

// Close gives back what is held of limits and not used, reports what is not
// counted yet, ends what runs in the background, withdraws the report to the
// manager and lets go of Redis. Requests decided later are decided as if the store
// had failed. Only the first call does something.
func (l *Limiter) Close(ctx context.Context) error {
	var err error
	l.closed.Do(func() {
		l.stop()
		l.running.Wait()
		l.tops.close()
		l.engine.Close(ctx)
		if l.redis != nil {
			l.redis.Close(ctx)
		}
		if l.follower != nil {
			err = l.follower.leave(ctx)
		}
		if l.client != nil {
			if closing := l.client.Close(); closing != nil && err == nil {
				err = fmt.Errorf("close the connections to the store: %w", closing)
			}
		}
	})
	return err
}
