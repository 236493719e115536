package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
)

// statuses follows what the policies' statuses say, as kubectl wait does. It is safe
// for concurrent use.
type statuses struct {
	mu   sync.Mutex
	says map[types.NamespacedName]says
	// How many policies have a condition that is True of their generation.
	programmed, enforced int
}

// says is what one status says of its policy's generation.
type says struct {
	generation           int64
	programmed, enforced bool
	enforcedAt           time.Time // when it came to say so
}

// follow returns when all policies that exist are known.
func follow(ctx context.Context, config *rest.Config, scheme *runtime.Scheme) (*statuses, error) {
	objects, err := cache.New(config, cache.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	informer, err := objects.GetInformer(ctx, &v1alpha1.RateLimitPolicy{}, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, err
	}
	s := &statuses{says: map[types.NamespacedName]says{}}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    s.note,
		UpdateFunc: func(_, o any) { s.note(o) },
		DeleteFunc: s.forget,
	}); err != nil {
		return nil, err
	}
	go func() { _ = objects.Start(ctx) }() // it ends with the context only
	if !objects.WaitForCacheSync(ctx) {
		return nil, fmt.Errorf("follow the policies: %w", context.Cause(ctx))
	}
	return s, nil
}

func (s *statuses) note(o any) {
	p, isPolicy := o.(*v1alpha1.RateLimitPolicy)
	if !isPolicy {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	before := s.says[key]
	now := says{
		generation: p.Generation,
		programmed: isTrue(p, v1alpha1.ConditionProgrammed),
		enforced:   isTrue(p, v1alpha1.ConditionEnforced),
	}
	if now.enforced {
		now.enforcedAt = time.Now()
		if before.enforced && before.generation == now.generation {
			now.enforcedAt = before.enforcedAt
		}
	}
	s.says[key] = now
	s.programmed += one(now.programmed) - one(before.programmed)
	s.enforced += one(now.enforced) - one(before.enforced)
}

// forget is told of a policy that is gone, or, if nobody saw it go, of its name.
func (s *statuses) forget(o any) {
	name, err := toolscache.DeletionHandlingObjectToName(o)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := types.NamespacedName{Namespace: name.Namespace, Name: name.Name}
	s.programmed -= one(s.says[key].programmed)
	s.enforced -= one(s.says[key].enforced)
	delete(s.says, key)
}

func isTrue(p *v1alpha1.RateLimitPolicy, condition string) bool {
	c := meta.FindStatusCondition(p.Status.Conditions, condition)
	return c != nil && c.Status == metav1.ConditionTrue && c.ObservedGeneration == p.Generation
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// awaitProgrammed waits until so many policies are in the store, by their statuses.
func (s *statuses) awaitProgrammed(ctx context.Context, n int) error {
	return s.await(ctx, n, "Programmed", func() int { return s.programmed })
}

// awaitEnforced waits until so many are enforced by all of their pods.
func (s *statuses) awaitEnforced(ctx context.Context, n int) error {
	return s.await(ctx, n, "Enforced", func() int { return s.enforced })
}

func (s *statuses) await(ctx context.Context, n int, condition string, count func() int) error {
	have := 0
	err := poll(ctx, 10*time.Millisecond, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		have = count()
		return have >= n
	})
	if err != nil {
		return fmt.Errorf("%d of %d policies are %s: %w", have, n, condition, err)
	}
	return nil
}

// awaitEnforcedAt waits until a policy's status says that all pods enforce a
// generation, and returns when it came to say so.
func (s *statuses) awaitEnforcedAt(ctx context.Context, key types.NamespacedName, generation int64) (time.Time, error) {
	var found says
	err := poll(ctx, 10*time.Millisecond, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		found = s.says[key]
		return found.enforced && found.generation >= generation
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("the status of %s does not say that generation %d is enforced: %w", key, generation, err)
	}
	return found.enforcedAt, nil
}

// generation is the policy's, as last heard.
func (s *statuses) generation(key types.NamespacedName) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.says[key].generation
}
