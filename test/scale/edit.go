package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// edit is a change of policies of one namespace, and how long it took until each of
// the namespace's watchers enforced it. It is safe for concurrent use.
type edit struct {
	namespace   string
	generations map[string]int64 // that the policies are to have, by name
	began       time.Time
	done        chan struct{} // closed when all watchers enforce it

	mu       sync.Mutex
	watchers int
	took     map[int]time.Duration // by watcher
}

// loaded is told what a watcher has begun to enforce.
func (e *edit) loaded(watcher int, s tallyman.State) {
	now := time.Now()
	enforced := 0
	for _, p := range s.Policies {
		if generation, edited := e.generations[p.Name]; edited && p.Generation >= generation {
			enforced++
		}
	}
	if enforced < len(e.generations) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, known := e.took[watcher]; known {
		return
	}
	e.took[watcher] = now.Sub(e.began)
	if len(e.took) == e.watchers {
		close(e.done)
	}
}

// samples are what edits took, in ms.
type samples struct {
	each   []float64 // until a watcher enforced it, for each edit and watcher
	first  []float64 // until the first watcher did, for each edit: API server, manager and Redis
	all    []float64 // until the last watcher did, for each edit
	status []float64 // until the status said so, for each edit
}

func (s *samples) add(e *edit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	first, last := math.Inf(1), 0.0
	for _, took := range e.took {
		s.each = append(s.each, milliseconds(took))
		first, last = min(first, milliseconds(took)), max(last, milliseconds(took))
	}
	s.first = append(s.first, first)
	s.all = append(s.all, last)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// percentile is the value that the share p (0..1) of the values does not exceed.
func percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(p*float64(len(sorted))))-1)]
}

// editPolicies changes policies of a namespace, all at once, and waits until its
// watchers enforce that.
func (b *bench) editPolicies(ctx context.Context, ns string, names []string, watchers int) (*edit, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errSlow)
	defer cancel()
	policies := make([]*v1alpha1.RateLimitPolicy, len(names))
	e := &edit{
		namespace: ns, generations: map[string]int64{}, done: make(chan struct{}),
		watchers: watchers, took: map[int]time.Duration{},
	}
	for i, name := range names {
		policies[i] = &v1alpha1.RateLimitPolicy{}
		if err := b.api.Get(ctx, types.NamespacedName{Namespace: ns, Name: name}, policies[i]); err != nil {
			return nil, err
		}
		e.generations[name] = policies[i].Generation + 1
	}
	e.began = time.Now()
	b.fleet.current.Store(e)
	defer b.fleet.current.Store(nil)
	err := each(ctx, len(policies), func(ctx context.Context, i int) error {
		before := policies[i].DeepCopy()
		requests := *policies[i].Spec.Limits[0].Requests + 1
		policies[i].Spec.Limits[0].Requests = &requests
		return b.api.Patch(ctx, policies[i], client.MergeFrom(before))
	})
	if err != nil {
		return nil, fmt.Errorf("edit policies of namespace %s: %w", ns, err)
	}
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("an edit in namespace %s is not enforced by all watchers: %w", ns, context.Cause(ctx))
	case <-e.done:
		return e, nil
	}
}

// editsOf edits one policy after the other, the n-th as which says, and each as soon
// as the one before is enforced.
func (b *bench) editsOf(ctx context.Context, n, watchers int, which func(i int) types.NamespacedName) (samples, error) {
	var s samples
	edits := make([]*edit, n)
	for i := range n {
		key := which(i)
		e, err := b.editPolicies(ctx, key.Namespace, []string{key.Name}, watchers)
		if err != nil {
			return s, err
		}
		edits[i] = e
		s.add(e)
	}
	for i, e := range edits {
		key := which(i)
		ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errSlow)
		at, err := b.statuses.awaitEnforcedAt(ctx, key, e.generations[key.Name])
		cancel()
		if err != nil {
			return s, err
		}
		// A policy that was edited again since is told of by its last edit only.
		if b.statuses.generation(key) == e.generations[key.Name] {
			s.status = append(s.status, milliseconds(at.Sub(e.began)))
		}
	}
	return s, nil
}
