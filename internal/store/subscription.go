package store

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// listen hears events until the context ends. It subscribes anew after each
// failure: go-redis's own channels would do so ten times a second, and not at
// all after a refusal.
func (w *Watcher) listen(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		if subscribed := w.hear(ctx); subscribed {
			failures = 0
		}
		failures++
		select {
		case <-ctx.Done():
		case <-time.After(backoff(failures, maxBackoff)):
		}
	}
}

// hear subscribes and hears events until that fails. It tells whether it ever
// was subscribed.
func (w *Watcher) hear(ctx context.Context) (subscribed bool) {
	subscription := w.store.client.Subscribe(ctx, w.store.channel(w.namespace))
	closed := make(chan struct{})
	// A read does not end with its context, but with its connection.
	cancel := context.AfterFunc(ctx, func() {
		defer close(closed)
		_ = subscription.Close()
	})
	defer func() {
		if !cancel() {
			<-closed
			return
		}
		_ = subscription.Close()
	}()
	for {
		message, err := subscription.Receive(ctx)
		if err != nil {
			return subscribed
		}
		if _, ok := message.(*redis.Subscription); ok {
			subscribed = true
		}
		w.hears(message)
	}
}
