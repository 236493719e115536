package sidecar

import (
	"context"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tallyman-dev/tallyman/internal/respond"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// newAdmin serves those who watch the sidecar. It is never limited. The sidecar
// is not ready before the policies have been read for the first time, and when
// the context has ended, since it drains then. A store that is lost later does
// not make it unready: the last policies stay in force.
func newAdmin(ctx context.Context, l *tallyman.Limiter, registry *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		switch {
		case ctx.Err() != nil:
			http.Error(w, "draining", http.StatusServiceUnavailable)
		case !l.IsReady():
			http.Error(w, "the policies have not been read yet", http.StatusServiceUnavailable)
		default:
			fmt.Fprintln(w, "ok")
		}
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /debug/policies", func(w http.ResponseWriter, _ *http.Request) {
		respond.JSON(w, l.State())
	})
	return mux
}
