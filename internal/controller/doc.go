// Package controller keeps the store and the policies' statuses at what the
// RateLimitPolicy objects say.
//
//	namespace_controller.go  the reconcile of one namespace, as a table of contents
//	targets.go, pods.go      what is read from the API server for it
//	publish.go, gate.go      what is written to the store and asked of it, and how it fails
//	status.go                statuses, and events about policies
//	missing.go               events about pods that have no sidecar
//	setup.go                 what wakes the reconcile up, and permissions
//	sweep.go                 the search for orphans in the store
//	metrics.go               what the manager counts
//
// What can be computed without a client is in package compile.
package controller
