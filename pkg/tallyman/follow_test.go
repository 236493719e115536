package tallyman

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/store"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// manager stands in for the one that publishes.
type manager struct {
	t      *testing.T
	server *testredis.Server
	client *redis.Client
	store  *store.Store
	prefix string
}

func newManager(t *testing.T, server *testredis.Server) *manager {
	client, prefix := server.Client(t), testredis.Prefix(t)
	return &manager{t: t, server: server, client: client, store: store.New(client, prefix), prefix: prefix}
}

// publish makes these definitions the whole truth of namespace shop.
func (m *manager) publish(definitions ...policy.Definition) store.Revision {
	m.t.Helper()
	p, err := m.store.Publish(m.t.Context(), "shop", definitions)
	if err != nil {
		m.t.Fatal(err)
	}
	return p.Revision
}

// open starts a limiter that follows the manager, and waits until it is ready.
func (m *manager) open(o Options) *Limiter {
	m.t.Helper()
	o.Store, o.Prefix, o.Namespace = m.server.URL(), m.prefix, "shop"
	l := open(m.t, o)
	<-l.Ready()
	return l
}

// awaitGeneration waits until a limiter enforces this generation of a policy; 0
// is none.
func (m *manager) awaitGeneration(l *Limiter, name string, want int64) {
	m.t.Helper()
	eventually(m.t, "generation to be enforced", func() bool {
		return l.current.Load().generations()[name] == want
	})
}

// garble replaces a definition by what is none, and announces it.
func (m *manager) garble(name string, last store.Revision) {
	m.t.Helper()
	last.Number++
	pipe := m.client.TxPipeline()
	pipe.HSet(m.t.Context(), m.prefix+":policies:{shop}", name, "garbage")
	pipe.Set(m.t.Context(), m.prefix+":revision:{shop}", last.String(), 0)
	pipe.Publish(m.t.Context(), m.prefix+":events:shop", "revision "+last.String())
	if _, err := pipe.Exec(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
}

// admitted makes n requests and counts those that are admitted.
func admitted(t *testing.T, l *Limiter, n int) (count int) {
	t.Helper()
	for range n {
		d := l.Admit(t.Context(), get("/"))
		if d.Degraded {
			t.Fatalf("degraded: %+v", d)
		}
		if d.Allowed {
			count++
		}
	}
	return count
}

// patient is perHour with a storeTimeout for machines that do much else.
func patient(requests string) string {
	return perHour(requests)[:len(perHour(requests))-1] + `,"storeTimeout":"10s"}`
}

func TestEditIsEnforcedAndKeepsWhatIsUsed(t *testing.T) {
	m := newManager(t, testredis.Shared(t))
	m.publish(definition(t, "orders", 1, patient("3")))
	l := m.open(Options{})
	if got := admitted(t, l, 5); got != 3 {
		t.Errorf("admitted %d under a limit of 3", got)
	}
	m.publish(definition(t, "orders", 2, patient("5")))
	m.awaitGeneration(l, "orders", 2)
	if got := admitted(t, l, 5); got != 2 {
		t.Errorf("admitted %d more under a limit of 5, want 2", got)
	}
}

func TestDeletionStopsEnforcement(t *testing.T) {
	m := newManager(t, testredis.Shared(t))
	m.publish(definition(t, "orders", 1, patient("0")))
	l := m.open(Options{})
	if got := admitted(t, l, 1); got != 0 {
		t.Error("a limit of 0 is not enforced")
	}
	m.publish()
	m.awaitGeneration(l, "orders", 0)
	if got := admitted(t, l, 3); got != 3 {
		t.Errorf("admitted %d of 3 without a policy", got)
	}
}

func TestFlushOfRedisDoesNotStopEnforcement(t *testing.T) {
	m := newManager(t, testredis.Start(t))
	m.publish(definition(t, "orders", 1, patient("2")))
	l := m.open(Options{})
	if err := m.client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	// An event makes the limiter look, so that it has seen the empty store.
	before := l.LoadedAt()
	m.client.Publish(t.Context(), m.prefix+":events:shop", "revision 1-1")
	eventually(t, "the definitions to be read again", func() bool { return l.LoadedAt().After(before) })
	if got := admitted(t, l, 5); got != 2 {
		t.Errorf("admitted %d under a limit of 2", got)
	}
	m.publish(definition(t, "orders", 2, patient("3")))
	m.awaitGeneration(l, "orders", 2)
}

func TestGarbageDefinitionKeepsTheLastGoodOne(t *testing.T) {
	m := newManager(t, testredis.Shared(t))
	revision := m.publish(definition(t, "orders", 1, patient("0")), definition(t, "users", 1, patient("9")))
	loaded := make(chan State, 10)
	l := m.open(Options{Pod: "pod-1", Observer: Observer{DefinitionsLoaded: func(s State) { loaded <- s }}})
	<-loaded
	m.garble("orders", revision)
	state := <-loaded
	if state.Rejected["orders"] == "" || len(state.Policies) != 2 {
		t.Errorf("state is %+v, want a rejection and both policies", state)
	}
	if got := admitted(t, l, 3); got != 0 {
		t.Errorf("admitted %d under the last good limit of 0", got)
	}
	eventually(t, "the heartbeat to tell of the rejection", func() bool {
		enforcers, err := m.store.Enforcers(t.Context(), "shop")
		return err == nil && len(enforcers) == 1 && enforcers[0].Rejected["orders"] != "" && enforcers[0].Policies["orders"] == 1
	})
}

func TestGarbageEventIsIgnored(t *testing.T) {
	m := newManager(t, testredis.Shared(t))
	m.publish(definition(t, "orders", 1, patient("0")))
	var ignored atomic.Int64
	l := m.open(Options{Observer: Observer{EventIgnored: func() { ignored.Add(1) }}})
	eventually(t, "a message to be counted", func() bool {
		m.client.Publish(t.Context(), m.prefix+":events:shop", "\x00{garbage")
		return ignored.Load() > 0
	})
	if got := admitted(t, l, 1); got != 0 {
		t.Error("the policy is not enforced any more")
	}
}

func TestGarbageInACounterIsCountedAndDoesNotFail(t *testing.T) {
	m := newManager(t, testredis.Shared(t))
	m.publish(definition(t, "orders", 1, patient("5")))
	var corrupt atomic.Int64
	l := m.open(Options{Observer: Observer{CounterCorrupt: func() { corrupt.Add(1) }}})
	admitted(t, l, 1)
	keys, err := m.client.Keys(t.Context(), m.prefix+":c:shop:orders:*").Result()
	if err != nil || len(keys) != 1 {
		t.Fatalf("counters are %v, %v", keys, err)
	}
	if err := m.client.Set(t.Context(), keys[0], "garbage", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if got := admitted(t, l, 7); got != 5 || corrupt.Load() != 1 {
		t.Errorf("admitted %d of a new counter of 5, and told of garbage %d times, want once", got, corrupt.Load())
	}
}

func TestHeartbeatTellsWhatIsEnforcedUntilClose(t *testing.T) {
	m := newManager(t, testredis.Shared(t))
	orders, users := definition(t, "orders", 7, patient("1")), definition(t, "users", 1, patient("1"))
	users.Selectors = []policy.Selector{{MatchLabels: map[string]string{"app": "users"}}}
	orders.UID = "first"
	revision := m.publish(orders, users)
	l := m.open(Options{Pod: "orders-1", Labels: map[string]string{"app": "orders"}})

	report := func() (h store.Heartbeat) {
		if enforcers, err := m.store.Enforcers(t.Context(), "shop"); err == nil && len(enforcers) == 1 {
			h = enforcers[0].Heartbeat
		}
		h.Version = ""
		return h
	}
	want := store.Heartbeat{
		Pod: "orders-1", Revision: revision,
		Policies: map[string]int64{"orders": 7}, UIDs: map[string]string{"orders": "first"},
	}
	eventually(t, "the first report", func() bool { return cmp.Equal(want, report()) })

	orders.Generation = 8
	want.Revision, want.Policies = m.publish(orders, users), map[string]int64{"orders": 8}
	began := time.Now()
	eventually(t, "the report of the edit", func() bool { return cmp.Equal(want, report()) })
	if took := time.Since(began); took > store.BeatInterval {
		t.Errorf("the report of the edit took %v, as if it waited for its turn", took)
	}

	orders.UID = "made anew"
	want.Revision, want.UIDs = m.publish(orders, users), map[string]string{"orders": "made anew"}
	eventually(t, "the report of another object", func() bool { return cmp.Equal(want, report()) })

	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if enforcers, err := m.store.Enforcers(t.Context(), "shop"); err != nil || len(enforcers) != 0 {
		t.Errorf("after Close the enforcers are %v, %v", enforcers, err)
	}
}

// record is a log that tests can read while it is written.
type record struct {
	mu    sync.Mutex
	lines strings.Builder
}

// Write implements io.Writer.
func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lines.Write(p)
}

func (r *record) count(part string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Count(r.lines.String(), part)
}

func TestHeartbeatsThatAreRefusedAreToldApartFromAnOutage(t *testing.T) {
	m := newManager(t, testredis.Start(t))
	may := func(keys string) {
		if err := m.client.Do(t.Context(), "ACL", "SETUSER", "sidecar", "on", ">hunter2", "+@all", "allchannels", "resetkeys", keys).Err(); err != nil {
			t.Fatal(err)
		}
	}
	may("%R~*") // which heartbeats do not do with
	var log record
	var failures atomic.Int64
	l := m.open(Options{
		Pod: "orders-1", Username: "sidecar", Password: "hunter2", Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Observer: Observer{HeartbeatFailed: func(error) { failures.Add(1) }},
	})
	for generation := range int64(3) {
		before := failures.Load()
		m.publish(definition(t, "orders", generation+1, patient("1")))
		m.awaitGeneration(l, "orders", generation+1)
		eventually(t, "the heartbeat of the edit to fail", func() bool { return failures.Load() > before })
	}
	may("~*")
	m.publish(definition(t, "orders", 4, patient("1")))
	eventually(t, "a heartbeat to be taken", func() bool { return log.count("takes heartbeats again") > 0 })
	for line, want := range map[string]int{
		"does not take heartbeats": 1, "takes heartbeats again": 1, "does not answer": 0, "answers again": 0,
	} {
		if got := log.count(line); got != want {
			t.Errorf("%q is logged %d times, want %d", line, got, want)
		}
	}
}

func TestOutageIsLoggedOnceAndSoIsItsEnd(t *testing.T) {
	server := testredis.Start(t)
	m := newManager(t, server)
	m.publish(definition(t, "orders", 1, patient("1")))
	var log record
	var failures atomic.Int64
	m.open(Options{
		Pod: "orders-1", Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Observer: Observer{LoadFailed: func(error) { failures.Add(1) }},
	})
	server.Kill()
	eventually(t, "some reads to fail", func() bool { return failures.Load() > 2 })
	server.Restart(t) // empty: there is nothing to take over
	eventually(t, "its end to be logged", func() bool { return log.count("answers again") > 0 })
	if down, up := log.count("cannot be read from the store; the last good ones stay in force"), log.count("answers again"); down != 1 || up != 1 {
		t.Errorf("an outage is logged %d times and its end %d times, want once each", down, up)
	}
}

func TestNamespaceWithoutPoliciesIsReady(t *testing.T) {
	l := newManager(t, testredis.Shared(t)).open(Options{})
	if d := l.Admit(t.Context(), get("/")); !d.Allowed || d.Degraded {
		t.Errorf("got %+v", d)
	}
}

func TestLimiterStartsWithoutRedisAndFindsItLater(t *testing.T) {
	server := testredis.Start(t)
	m := newManager(t, server)
	server.Kill()
	var failures atomic.Int64
	l := open(t, Options{Store: server.URL(), Prefix: m.prefix, Namespace: "shop",
		Observer: Observer{LoadFailed: func(error) { failures.Add(1) }}})
	eventually(t, "a failure to be told", func() bool { return failures.Load() > 0 })
	if d := l.Admit(t.Context(), get("/")); !d.Allowed || !d.Degraded || d.Reason != DefinitionsUnknown || l.IsReady() {
		t.Errorf("without definitions: ready is %v, %+v", l.IsReady(), d)
	}
	server.Restart(t)
	m.publish(definition(t, "orders", 1, patient("0")))
	m.awaitGeneration(l, "orders", 1)
	<-l.Ready()
}

// slack is what a busy machine may add to a deadline.
const slack = time.Second

func TestOutageOfRedisIsDecidedInTimeAndPasses(t *testing.T) {
	const limits = `{"selector":{},"storeTimeout":"100ms","limits":[
		{"name":"open","requests":1000000,"window":"1h","match":[{"path":{"value":"/open"}}]},
		{"name":"closed","requests":1000000,"window":"1h","failurePolicy":"Deny","match":[{"path":{"value":"/closed"}}]}]}`
	for name, outage := range map[string]struct{ begin, end func(*testredis.Server) }{
		"refuses connections": {(*testredis.Server).Kill, func(s *testredis.Server) { s.Restart(t) }},
		"does not answer":     {(*testredis.Server).Pause, (*testredis.Server).Resume},
	} {
		t.Run(name, func(t *testing.T) {
			server := testredis.Start(t)
			m := newManager(t, server)
			m.publish(definition(t, "orders", 1, limits))
			l := m.open(Options{})
			eventually(t, "an ordinary decision", func() bool { return !l.Admit(t.Context(), get("/open")).Degraded })

			outage.begin(server)
			var requests sync.WaitGroup
			for range 50 { // more than there are connections
				requests.Go(func() {
					began := time.Now()
					if d := l.Admit(t.Context(), get("/open")); !d.Allowed || !d.Degraded || d.Reason != StoreUnavailable {
						t.Errorf("Allow: %+v", d)
					}
					if d := l.Admit(t.Context(), get("/closed")); d.Allowed || !d.Degraded || d.Reason != StoreUnavailable {
						t.Errorf("Deny: %+v", d)
					}
					if took := time.Since(began); took > 200*time.Millisecond+slack {
						t.Errorf("two decisions took %v with a storeTimeout of 100ms", took)
					}
				})
			}
			requests.Wait()

			outage.end(server)
			eventually(t, "decisions by the store again", func() bool {
				d := l.Admit(t.Context(), get("/closed"))
				return d.Allowed && !d.Degraded
			})
		})
	}
}

func TestFlushOfScriptsUnderLoadFailsNoRequest(t *testing.T) {
	m := newManager(t, testredis.Start(t))
	m.publish(definition(t, "orders", 1, patient("300")))
	l := m.open(Options{})
	var allowed atomic.Int64
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() { allowed.Add(int64(admitted(t, l, 50))) })
	}
	done := make(chan struct{})
	go func() { clients.Wait(); close(done) }()
	for flushing := true; flushing; {
		select {
		case <-done:
			flushing = false
		default:
			if err := m.client.ScriptFlush(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if allowed.Load() != 300 {
		t.Errorf("admitted %d of 400 under a limit of 300", allowed.Load())
	}
}

func TestPoliciesChangeUnderLoad(t *testing.T) {
	m := newManager(t, testredis.Shared(t))
	enforce := definition(t, "orders", 1, `{"selector":{},"storeTimeout":"10s","limits":[{"name":"x","requests":0,"window":"1h"}]}`)
	shadow := definition(t, "orders", 2, `{"selector":{},"storeTimeout":"10s","enforcement":"Shadow","limits":[{"name":"x","requests":0,"window":"1h"}]}`)
	m.publish(enforce)
	l := m.open(Options{})
	m.awaitGeneration(l, "orders", 1)

	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				d := l.Admit(t.Context(), get("/"))
				if len(d.Limits) != 1 || d.Allowed != d.Limits[0].Shadow {
					t.Errorf("a request was decided by half of a policy: %+v", d)
					return
				}
				l.State()
			}
		})
	}
	for range 20 {
		m.publish(shadow)
		m.awaitGeneration(l, "orders", 2)
		m.publish(enforce)
		m.awaitGeneration(l, "orders", 1)
	}
	stop()
	clients.Wait()
}
