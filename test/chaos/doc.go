// Package chaos tests the library against faults of real servers, under load.
//
// A trace of decisions is held against what a limit promises by a checker that is
// pure (check.go), and that is itself tested with traces that break the promise.
// The tests that take longest run with -chaos.all, as make test-faults does.
package chaos
