package main

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/tallyman-dev/tallyman/internal/operator"
	"github.com/tallyman-dev/tallyman/internal/operator/guard"
	"github.com/tallyman-dev/tallyman/internal/respond"
	"github.com/tallyman-dev/tallyman/internal/store"
)

// serveOperatorAPI has every replica, leader or not, tell the kubectl plugin how the
// store is.
func serveOperatorAPI(mgr ctrl.Manager, s *store.Store, scripts map[string]*redis.Script, address string) error {
	if address == "0" {
		return nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen for the operator API: %w", err)
	}
	return mgr.Add(&manager.Server{
		Name:     "operator API",
		Listener: listener,
		Server: &http.Server{
			Handler:           newOperatorAPI(s, scripts),
			ReadHeaderTimeout: 10 * time.Second,
			IdleTimeout:       time.Minute,
		},
	})
}

func newOperatorAPI(s *store.Store, scripts map[string]*redis.Script) http.Handler {
	return guard.New(map[string]http.Handler{
		"GET " + operator.PathStore: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			nodes, err := s.Health(r.Context(), scripts)
			respond.JSON(w, storeHealth(nodes, err, len(scripts)))
		}),
	})
}

func storeHealth(nodes []store.NodeHealth, err error, scripts int) operator.StoreHealth {
	out := operator.StoreHealth{Nodes: make([]operator.NodeHealth, len(nodes)), Error: shortError(err)}
	for i, n := range nodes {
		out.Nodes[i] = operator.NodeHealth{Address: n.Address, Error: shortError(n.Err)}
		if n.Err == nil {
			out.Nodes[i].LatencyMicros = n.Latency.Microseconds()
			out.Nodes[i].Scripts, out.Nodes[i].MissingScripts = scripts-len(n.Missing), n.Missing
		}
	}
	return out
}

// shortError is an error's text, which is Redis's own to choose.
func shortError(err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprintf("%.300s", err.Error())
}
