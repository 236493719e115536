package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// fleet are watchers: what runs in a sidecar, without a way in for requests. Each
// has connections of its own.
type fleet struct {
	limiters []*tallyman.Limiter
	// current is the edit whose enforcement is waited for; nil for none.
	current atomic.Pointer[edit]
}

// join adds watchers for the first pods of a namespace.
func (f *fleet) join(ctx context.Context, storeURL, ns string, pods int) error {
	for i := range pods {
		n := len(f.limiters)
		l, err := tallyman.New(ctx, tallyman.Options{
			Store: storeURL, Namespace: ns, Pod: podName(i), Labels: podLabels,
			Observer: tallyman.Observer{DefinitionsLoaded: func(s tallyman.State) {
				if e := f.current.Load(); e != nil && e.namespace == ns {
					e.loaded(n, s)
				}
			}},
		})
		if err != nil {
			return err
		}
		f.limiters = append(f.limiters, l)
	}
	return nil
}

// awaitReady waits until all have read their definitions.
func (f *fleet) awaitReady(ctx context.Context) error {
	for i, l := range f.limiters {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d watchers are ready: %w", i, len(f.limiters), context.Cause(ctx))
		case <-l.Ready():
		}
	}
	return nil
}

// leave ends the watchers.
func (f *fleet) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_ = each(ctx, len(f.limiters), func(ctx context.Context, i int) error {
		_ = f.limiters[i].Close(ctx) // of no consequence: Redis goes, too
		return nil
	})
	f.limiters = nil
}
