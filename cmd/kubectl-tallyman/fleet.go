package main

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/tallyman-dev/tallyman/internal/inject"
	"github.com/tallyman-dev/tallyman/internal/reach"
)

const (
	// fleetQuestions is how many sidecars are asked at a time.
	fleetQuestions = 32
	// fleetPatience bounds the wait for one of many sidecars.
	fleetPatience = 5 * time.Second
)

// member is a pod of a fleet. Either there is a client, or err says why there is none.
type member struct {
	namespace, pod string
	sidecar        *reach.Client
	err            error
}

// fleet is many sidecars, whose connections stay open.
type fleet struct{ members []member }

// ofURL is a fleet of one sidecar outside of a cluster.
func ofURL(url string) (*fleet, error) {
	sidecar, err := reach.NewClient(url)
	return &fleet{members: []member{{sidecar: sidecar}}}, err
}

// newFleet is a fleet of these pods, whether they have a sidecar or not.
func newFleet(ctx context.Context, c *cluster, pods []corev1.Pod) *fleet {
	f := &fleet{}
	for i := range pods {
		m := member{namespace: pods[i].Namespace, pod: pods[i].Name}
		m.sidecar, m.err = c.sidecar(ctx, &pods[i])
		f.members = append(f.members, m)
	}
	return f
}

// update follows the pods of a cluster: those that have a sidecar are in the fleet.
func (f *fleet) update(ctx context.Context, c *cluster, pods []corev1.Pod) {
	known := map[[2]string]member{}
	for _, m := range f.members {
		known[[2]string{m.namespace, m.pod}] = m
	}
	f.members = nil
	for i := range pods {
		if !inject.HasSidecar(&pods[i]) {
			continue
		}
		name := [2]string{pods[i].Namespace, pods[i].Name}
		m, found := known[name]
		delete(known, name)
		if !found || m.err != nil {
			m = member{namespace: pods[i].Namespace, pod: pods[i].Name}
			m.sidecar, m.err = c.sidecar(ctx, &pods[i])
		}
		f.members = append(f.members, m)
	}
	for _, gone := range known {
		gone.close()
	}
}

func (f *fleet) close() {
	for _, m := range f.members {
		m.close()
	}
}

func (m *member) close() {
	if m.sidecar != nil {
		m.sidecar.Close()
	}
}

// told is what a member of a fleet has answered, or why it did not.
type told[A any] struct {
	namespace, pod string
	answer         A
	err            error
}

// askAll asks all of a fleet, some at a time. The answers are in the order of pods.
func askAll[A any](ctx context.Context, f *fleet, ask func(context.Context, *reach.Client) (A, error)) []told[A] {
	answers := make([]told[A], len(f.members))
	var group errgroup.Group
	group.SetLimit(fleetQuestions)
	for i, m := range f.members {
		answers[i] = told[A]{namespace: m.namespace, pod: m.pod, err: m.err}
		if m.err != nil {
			continue
		}
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, fleetPatience)
			defer cancel()
			answers[i].answer, answers[i].err = ask(ctx, m.sidecar)
			return nil
		})
	}
	_ = group.Wait() // errors are in the answers
	return answers
}
