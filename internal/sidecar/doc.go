// Package sidecar serves a tallyman.Limiter beside an app: as a reverse proxy in
// front of it, as an API that answers checks, by Envoy's protocols, and to those
// who watch and operate it.
//
//	config.go   flags and environment
//	sidecar.go  the servers' life, from start to drain
//	proxy.go    the way to the app
//	check.go    the check API
//	reserve.go  its reservations and refunds
//	auth.go     forward-auth, on the same listener
//	envoy/      Envoy's rate limit service and external authorization
//	admin.go    health, metrics, what is enforced
//	operator.go what the kubectl plugin asks
//	door.go     what is decided, counted, timed, traced and logged by its way in
//	metrics.go  what is counted; ways.go has what is by way in, series.go by limit
//	refusals.go refusals in the log
//	tracing/    OpenTelemetry
//
// It must not import a client of Kubernetes: a sidecar has no business with the
// API server, and stays small.
package sidecar
