package store_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/store"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// patience bounds the waits of these tests; none of them takes that long unless
// it fails.
const patience = 20 * time.Second

// watching is a running watcher.
type watching struct {
	*store.Watcher
	snapshots chan store.Snapshot
	garbage   chan struct{}
	errors    chan error
}

// watch runs a watcher until the test ends.
func watch(t *testing.T, s *store.Store, poll time.Duration) *watching {
	t.Helper()
	w := &watching{
		snapshots: make(chan store.Snapshot, 100),
		garbage:   make(chan struct{}, 100),
		errors:    make(chan error, 1000),
	}
	w.Watcher = store.NewWatcher(s, "shop", func(s store.Snapshot) { w.snapshots <- s }, store.WatchOptions{
		PollInterval: poll,
		OnGarbage:    func() { w.garbage <- struct{}{} },
		OnError:      func(err error) { w.errors <- err },
	})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { stop(); running.Wait() })
	return w
}

// next waits for a value.
func next[T any](t *testing.T, what string, values <-chan T) T {
	t.Helper()
	select {
	case v := <-values:
		return v
	case <-time.After(patience):
		t.Fatalf("waited %v for %s", patience, what)
		panic("not reached")
	}
}

// awaitSubscription waits until the watcher hears events.
func awaitSubscription(t *testing.T, client redis.UniversalClient, channel string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for client.PubSubNumSub(t.Context(), channel).Val()[channel] == 0 {
		if time.Now().After(deadline) {
			t.Fatal("the watcher does not subscribe")
		}
	}
}

// setUser changes an ACL user.
func setUser(t *testing.T, client redis.UniversalClient, rules ...any) {
	t.Helper()
	if err := client.Do(t.Context(), append([]any{"ACL", "SETUSER"}, rules...)...).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestAWatcherHearsOfEveryPublish(t *testing.T) {
	s, client, prefix := sharedStore(t)
	publish(t, s, "shop", definition("shop", "orders", 1))
	w := watch(t, s, time.Hour) // polls never: events alone bring the news
	if g := generations(next(t, "the first snapshot", w.snapshots)); g["orders"] != 1 {
		t.Errorf("saw %v first", g)
	}
	next(t, "readiness", w.Ready())
	awaitSubscription(t, client, prefix+":events:shop")

	began := time.Now()
	edited := publish(t, s, "shop", definition("shop", "orders", 2))
	snapshot := next(t, "the edit", w.snapshots)
	t.Logf("heard of the edit %v after the publish began", time.Since(began))
	if snapshot.Revision != edited.Revision || generations(snapshot)["orders"] != 2 {
		t.Errorf("heard %+v of %+v", snapshot, edited)
	}
	publish(t, s, "shop")
	if snapshot := next(t, "the deletion", w.snapshots); len(snapshot.Definitions) != 0 {
		t.Errorf("heard %+v of a deletion", snapshot)
	}
}

func TestAWatcherOfAnEmptyStoreIsReadyAndTellsNothing(t *testing.T) {
	s, _, _ := sharedStore(t)
	w := watch(t, s, time.Hour)
	next(t, "readiness", w.Ready())
	if len(w.snapshots) != 0 || w.LoadedAt().IsZero() {
		t.Errorf("told %d snapshots, loaded at %v", len(w.snapshots), w.LoadedAt())
	}
}

func TestAWatcherFindsByPollingWhatItDidNotHear(t *testing.T) {
	server := testredis.Start(t)
	s, client := connect(t, server.URL(), store.DefaultPrefix)
	publish(t, s, "shop", definition("shop", "orders", 1))
	w := watch(t, s, 20*time.Millisecond)
	next(t, "the first snapshot", w.snapshots)
	// A definition with its revision, and no event: as after a restart from a
	// snapshot of the data.
	data, err := definition("shop", "orders", 2).Encode()
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.HSet(t.Context(), "tallyman:policies:{shop}", "orders", data)
		p.Set(t.Context(), "tallyman:revision:{shop}", "1-99", 0)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if g := generations(next(t, "the missed edit", w.snapshots)); g["orders"] != 2 {
		t.Errorf("found %v", g)
	}
}

// A definition is recognized by its text, which still has to be in its place.
func TestAWatcherRejectsAKnownDefinitionUnderAnotherName(t *testing.T) {
	s, client, prefix := sharedStore(t)
	publish(t, s, "shop", definition("shop", "orders", 1), definition("shop", "login", 1))
	w := watch(t, s, 20*time.Millisecond)
	next(t, "the first snapshot", w.snapshots)
	key := prefix + ":policies:{shop}"
	text := client.HGet(t.Context(), key, "orders").Val()
	_, err := client.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.HSet(t.Context(), key, "basket", text, "cut", text[1:])
		p.Set(t.Context(), prefix+":revision:{shop}", "1-99", 0)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	snapshot := next(t, "the copy", w.snapshots)
	if len(snapshot.Definitions) != 2 || len(snapshot.Rejected) != 2 {
		t.Errorf("saw %+v", snapshot)
	}
}

func TestWhatWasPublishedWhileTheSubscriptionWasLostIsFound(t *testing.T) {
	server := testredis.Start(t)
	s, client := connect(t, server.URL(), store.DefaultPrefix)
	w := watch(t, s, time.Hour) // polls never: subscribing anew makes up for it
	awaitSubscription(t, client, "tallyman:events:shop")
	for generation := int64(1); generation <= 3; generation++ {
		if err := client.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(); err != nil {
			t.Fatal(err)
		}
		publish(t, s, "shop", definition("shop", "orders", generation))
		if g := generations(next(t, "the edit", w.snapshots)); g["orders"] != generation {
			t.Errorf("found %v, want generation %d", g, generation)
		}
		awaitSubscription(t, client, "tallyman:events:shop")
	}
}

func TestAWatcherThatMayNotSubscribePollsAndTriesAgain(t *testing.T) {
	server := testredis.Start(t)
	admin, client := connect(t, server.URL(), store.DefaultPrefix)
	setUser(t, client, "deaf", "on", "nopass", "~*", "+@all", "resetchannels")
	s, _ := connect(t, "redis://deaf:any@"+server.Addr, store.DefaultPrefix)
	w := watch(t, s, 20*time.Millisecond)
	publish(t, admin, "shop", definition("shop", "orders", 1))
	next(t, "a snapshot by a poll", w.snapshots)

	setUser(t, client, "deaf", "allchannels")
	awaitSubscription(t, client, "tallyman:events:shop")
}

func TestEventsWithoutNewsCostNoLoad(t *testing.T) {
	server := testredis.Start(t)
	s, client := connect(t, server.URL(), store.DefaultPrefix)
	published := publish(t, s, "shop", definition("shop", "orders", 1))
	w := watch(t, s, time.Hour)
	next(t, "the first snapshot", w.snapshots)
	awaitSubscription(t, client, "tallyman:events:shop")
	scripts := func() string {
		return client.InfoMap(t.Context(), "commandstats").Item("Commandstats", "cmdstat_evalsha_ro")
	}
	before := scripts()
	for range 100 {
		client.Publish(t.Context(), "tallyman:events:shop", "revision 1-1")
		client.Publish(t.Context(), "tallyman:events:shop", "revision "+published.Revision.String())
	}
	client.Publish(t.Context(), "tallyman:events:shop", "the end")
	next(t, "the end of the events", w.garbage)
	if after := scripts(); after != before {
		t.Errorf("definitions were read: %s, before %s", after, before)
	}
}

func TestALostStoreTakesNothingFromAWatcher(t *testing.T) {
	server := testredis.Start(t)
	s, client := connect(t, server.URL(), store.DefaultPrefix)
	publish(t, s, "shop", definition("shop", "orders", 1))
	w := watch(t, s, 5*time.Millisecond)
	next(t, "the first snapshot", w.snapshots)

	client.FlushAll(t.Context())
	flushed := time.Now()
	deadline := flushed.Add(patience)
	for !w.LoadedAt().After(flushed.Add(10 * time.Millisecond)) { // it has seen the empty store
		if time.Now().After(deadline) {
			t.Fatal("the watcher does not poll")
		}
		time.Sleep(time.Millisecond)
	}
	if len(w.snapshots) != 0 {
		t.Errorf("told of %+v after a flush", <-w.snapshots)
	}
	restored := publish(t, s, "shop", definition("shop", "orders", 1))
	if snapshot := next(t, "what was restored", w.snapshots); snapshot.Revision != restored.Revision {
		t.Errorf("told of %v, published %v", snapshot.Revision, restored.Revision)
	}
}

func TestAWatcherOutlivesItsStore(t *testing.T) {
	server := testredis.Start(t)
	s, _ := connect(t, server.URL(), store.DefaultPrefix)
	server.Kill()
	w := watch(t, s, 10*time.Millisecond) // Redis is down from the start
	_ = next(t, "an error", w.errors)
	select {
	case <-w.Ready():
		t.Error("ready without an answer from the store")
	default:
	}
	server.Restart(t)
	next(t, "readiness", w.Ready())
	publish(t, s, "shop", definition("shop", "orders", 1)) // the pool has just answered
	next(t, "a snapshot", w.snapshots)

	server.Kill()
	server.Restart(t)
	// After many failed dials a client's pool reports the last failure for up to
	// a second more; the manager tries again as well.
	publisher, _ := connect(t, server.URL(), store.DefaultPrefix)
	publish(t, publisher, "shop", definition("shop", "orders", 2))
	if g := generations(next(t, "a snapshot of the new store", w.snapshots)); g["orders"] != 2 {
		t.Errorf("saw %v", g)
	}
}

// Case P7: foreign messages on a shared Redis.
func TestForeignMessagesAreIgnoredAndCounted(t *testing.T) {
	s, client, prefix := sharedStore(t)
	w := watch(t, s, time.Hour)
	next(t, "readiness", w.Ready())
	awaitSubscription(t, client, prefix+":events:shop")
	for _, message := range []string{"", "revision", "revision x-y", "revision -1--1", "\x00\xff", "{}", "revision 99999999999999999999-1"} {
		client.Publish(t.Context(), prefix+":events:shop", message)
		next(t, "the count of garbage", w.garbage)
	}
	publish(t, s, "shop", definition("shop", "orders", 1))
	next(t, "a snapshot", w.snapshots)
	if len(w.errors) != 0 {
		t.Error(<-w.errors)
	}
}
