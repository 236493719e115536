package controller

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/tallyman-dev/tallyman/api/v1alpha1"
	"github.com/tallyman-dev/tallyman/internal/compile"
	"github.com/tallyman-dev/tallyman/internal/policy"
)

// publish brings the namespace's definitions and the scripts into the store, and
// asks who enforces them. A store that fails is a fact, not an error.
//
// The definitions come first: enforcers need them, and can load a missing script
// by themselves.
func (r *reconciler) publish(ctx context.Context, ns Namespace, definitions []policy.Definition) compile.Facts {
	var facts compile.Facts
	err := r.gate.try(ctx, func(ctx context.Context) error {
		if err := r.publishDefinitions(ctx, ns, definitions); err != nil {
			return err
		}
		if err := r.store.LoadScripts(ctx, r.scripts); err != nil {
			return err
		}
		facts.Published = true
		var err error
		facts.Enforcers, err = r.enforcers(ctx, ns)
		return err
	})
	if err != nil {
		facts.Fault = fault(err)
	}
	return facts
}

func (r *reconciler) publishDefinitions(ctx context.Context, ns Namespace, definitions []policy.Definition) error {
	publication, err := r.store.Publish(ctx, string(ns), definitions)
	r.metrics.published(publication.Changed, err)
	if err == nil && publication.Changed {
		log.FromContext(ctx).Info("Published policies", "namespace", ns,
			"revision", publication.Revision.String(), "policies", len(definitions))
	}
	return err
}

func (r *reconciler) enforcers(ctx context.Context, ns Namespace) ([]compile.Enforcer, error) {
	alive, err := r.store.Enforcers(ctx, string(ns))
	if err != nil {
		return nil, err
	}
	enforcers := make([]compile.Enforcer, len(alive))
	for i, e := range alive {
		enforcers[i] = compile.Enforcer{Pod: e.Pod, Policies: e.Policies, UIDs: e.UIDs, Rejected: e.Rejected}
	}
	return enforcers, nil
}

// fault tells what is wrong with the store in words that do not change from one
// attempt to the next, as the ports and times in errors do, and without the name
// of the manager's user. The log has all of that.
func fault(err error) *compile.Fault {
	if redis.IsAuthError(err) || redis.IsPermissionError(err) {
		return &compile.Fault{
			Reason:  v1alpha1.ReasonStoreUnauthorized,
			Message: "the store refuses the manager's credentials, or its user lacks a permission (see the manager's log)",
		}
	}
	return &compile.Fault{Reason: v1alpha1.ReasonStoreUnavailable, Message: cause(err)}
}

func cause(err error) string {
	if reply, ok := errors.AsType[redis.Error](err); ok {
		// The first word is a code such as READONLY, OOM or CLUSTERDOWN.
		code, _, _ := strings.Cut(reply.Error(), " ")
		return "the store answers with the error " + code + " (see the manager's log)"
	}
	_, unknownHost := errors.AsType[*net.DNSError](err)
	switch {
	case isTimeout(err):
		return "the store does not answer: timeout"
	case unknownHost:
		return "the store cannot be reached: its name cannot be resolved"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the store cannot be reached: connection refused"
	default:
		return "the store failed (see the manager's log)"
	}
}
