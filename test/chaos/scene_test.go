package chaos

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

var all = flag.Bool("chaos.all", false, "run the faults that take long, too")

func TestMain(m *testing.M) {
	flag.Parse()
	logging.Disable() // of connections that tests break on purpose
	os.Exit(m.Run())
}

// long marks a test that only make test-faults runs.
func long(t *testing.T) {
	t.Helper()
	if !*all {
		t.Skip("takes long; run with -chaos.all, as make test-faults does")
	}
}

// What every scene is held to.
const (
	// toRecover is from the end of a fault to an answer that is not degraded.
	toRecover = 5 * time.Second
	// toAnswer is how long any decision takes, storeTimeout included, on a
	// machine that runs other tests beside.
	toAnswer = 3 * time.Second
	// toHappen is a bound for what must happen some time: a deadlock otherwise.
	toHappen = 30 * time.Second
)

const (
	callers = 8
	// pace is the pause of a caller between requests: with six keys, each
	// key's limit is asked for many times over.
	pace = 2 * time.Millisecond
)

var keys = []string{"a", "b", "c", "d", "e", "f"}

// limits are the requests of the window limit, which refuses, and of the total,
// which only counts. Both are taken or none.
const (
	perWindow = 30
	inTotal   = 1_000_000
)

var sketch = promise{requests: perWindow, window: time.Second, late: toRecover}

// spec is the policy's, in JSON.
func spec(storeTimeout time.Duration) string {
	return fmt.Sprintf(`{
		"selector": {}, "storeTimeout": "%v",
		"limits": [
			{"name": "window", "requests": %d, "window": "1s", "algorithm": "SlidingLog", "key": [{"header": {"name": "X-Key"}}]},
			{"name": "total", "requests": %d, "window": "720h", "algorithm": "FixedWindow", "key": [{"header": {"name": "X-Key"}}]}
		]}`, storeTimeout, perWindow, inTotal)
}

// total is a policy that has only the limit that counts.
var total = fmt.Sprintf(`{
	"selector": {}, "storeTimeout": "%v",
	"limits": [
		{"name": "total", "requests": %d, "window": "720h", "algorithm": "FixedWindow", "key": [{"header": {"name": "X-Key"}}]}
	]}`, patience, inTotal)

// scene is a limiter under load, and the trace of its decisions.
type scene struct {
	t       *testing.T
	limiter *tallyman.Limiter
	promise promise // that its decisions are held to
	began   time.Time
	stop    context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	trace   []observation
	changed chan struct{} // closed when the trace grows, and then replaced
	longest time.Duration
}

// noLeaks is called before anything is started, so that it looks last.
func noLeaks(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t) })
}

// open starts a limiter of the policy, that ends with the test.
func open(t *testing.T, store string, storeTimeout time.Duration) *tallyman.Limiter {
	t.Helper()
	return start(t, tallyman.Options{Store: store, PolicyFile: policyFile(t, spec(storeTimeout))})
}

func policyFile(t *testing.T, spec string) string {
	t.Helper()
	text := "apiVersion: tallyman.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: chaos}\nspec: " + spec + "\n"
	file := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func start(t *testing.T, o tallyman.Options) *tallyman.Limiter {
	t.Helper()
	l, err := tallyman.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), toRecover)
		defer cancel()
		_ = l.Close(ctx) // some tests leave no server to withdraw from
	})
	return l
}

func newScene(t *testing.T, l *tallyman.Limiter) *scene {
	t.Helper()
	return &scene{t: t, limiter: l, promise: sketch, began: time.Now(), changed: make(chan struct{})}
}

// load lets callers ask until finish. It returns when the store decides.
func (s *scene) load() {
	s.t.Helper()
	ctx, stop := context.WithCancel(s.t.Context())
	s.stop = stop
	for i := range callers {
		s.running.Go(func() { s.call(ctx, i) })
	}
	s.t.Cleanup(s.finish) // before the limiter is closed
	s.recovers(s.now())
	s.decisions(20 * callers)
}

func (s *scene) call(ctx context.Context, i int) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		s.ask(keys[i%len(keys)])
		i++
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// ask is one request, which goes into the trace.
func (s *scene) ask(key string) tallyman.Decision {
	o := observation{key: key, from: s.now()}
	d := s.limiter.Admit(context.Background(), request(key))
	o.to, o.allowed, o.degraded = s.now(), d.Allowed, d.Degraded
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trace = append(s.trace, o)
	s.longest = max(s.longest, o.to-o.from)
	close(s.changed)
	s.changed = make(chan struct{})
	return d
}

// insist asks until a decision is not degraded.
func (s *scene) insist(key string) {
	s.t.Helper()
	deadline := time.Now().Add(toRecover)
	for s.ask(key).Degraded {
		if time.Now().After(deadline) {
			s.t.Fatalf("still degraded after %v", toRecover)
		}
		time.Sleep(pace)
	}
}

func request(key string) tallyman.Request {
	return tallyman.Request{Method: "GET", Path: "/", Header: http.Header{"X-Key": {key}}}
}

func (s *scene) now() time.Duration { return time.Since(s.began) }

// until waits for something to be true of the trace.
func (s *scene) until(what string, holds func(trace []observation) bool) {
	s.t.Helper()
	deadline := time.NewTimer(toHappen)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		held, changed := holds(s.trace), s.changed
		s.mu.Unlock()
		if held {
			return
		}
		select {
		case <-changed:
		case <-deadline.C:
			s.t.Fatalf("waited %v in vain for %s", toHappen, what)
		}
	}
}

// decisions waits for so many more.
func (s *scene) decisions(n int) {
	s.t.Helper()
	goal := s.size() + n
	s.until("decisions", func(trace []observation) bool { return len(trace) >= goal })
}

// lasts waits until the trace is that much longer.
func (s *scene) lasts(d time.Duration) {
	s.t.Helper()
	end := s.now() + d
	s.until("decisions", func(trace []observation) bool { return trace[len(trace)-1].from >= end })
}

func (s *scene) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.trace)
}

// degrades waits until a fault is felt: a test without that shows nothing.
func (s *scene) degrades() {
	s.t.Helper()
	s.degraded(s.size())
}

// degraded waits until one of the decisions after so many is degraded.
func (s *scene) degraded(seen int) {
	s.t.Helper()
	s.until("a degraded decision", func(trace []observation) bool {
		return slices.ContainsFunc(trace[seen:], func(o observation) bool { return o.degraded })
	})
}

// recovers waits for an answer that is not degraded, to a request after the end
// of the fault.
func (s *scene) recovers(since time.Duration) {
	s.t.Helper()
	s.recover("any", since, func(observation) bool { return true })
}

// recoversFor waits for such an answer to a request with a key.
func (s *scene) recoversFor(key string, since time.Duration) {
	s.t.Helper()
	s.recover(key, since, func(o observation) bool { return o.key == key })
}

func (s *scene) recover(key string, since time.Duration, about func(observation) bool) {
	s.t.Helper()
	var took time.Duration
	s.until("the recovery", func(trace []observation) (ok bool) {
		took, ok = recovery(trace, since, about)
		return ok
	})
	if took > toRecover {
		s.t.Errorf("recovered %v after the fault's end, want %v", took, toRecover)
	}
	s.t.Logf("recovered for %s key after %v", key, took.Round(time.Millisecond))
}

// finish ends the load.
func (s *scene) finish() {
	s.stop()
	s.running.Wait()
}

// check ends the load and holds the trace against the promise, with the counts
// that were lost in between.
func (s *scene) check(losses ...span) {
	s.t.Helper()
	s.finish()
	p := s.promise
	p.losses = losses
	if found := p.broken(s.trace); len(found) > 0 {
		s.t.Errorf("%d faults, the first:\n%s", len(found), found[0])
	}
	for _, key := range keys {
		least, most := p.counted(s.trace, key)
		if used := s.used(key); used < least || used > most {
			s.t.Errorf("%d requests of key %s are counted, want %d to %d", used, key, least, most)
		}
	}
	if s.longest > toAnswer {
		s.t.Errorf("a decision took %v", s.longest)
	}
	s.report()
}

// used is what the total limit, the last one, has counted for a key.
func (s *scene) used(key string) int {
	s.t.Helper()
	deadline := time.Now().Add(toRecover)
	for {
		d := s.limiter.Peek(s.t.Context(), request(key))
		if !d.Degraded {
			return inTotal - int(d.Limits[len(d.Limits)-1].Remaining)
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("no answer of the store to a peek: %+v", d)
		}
		time.Sleep(pace)
	}
}

func (s *scene) report() {
	var admitted, refused, degraded int
	for _, o := range s.trace {
		switch {
		case o.degraded:
			degraded++
		case o.allowed:
			admitted++
		default:
			refused++
		}
	}
	s.t.Logf("%d admitted, %d refused, %d degraded; the longest took %v",
		admitted, refused, degraded, s.longest.Round(time.Millisecond))
}
