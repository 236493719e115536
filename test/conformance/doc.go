// Package conformance holds one table of policies, requests and expected decisions,
// and sends it through every way in, on the store within the process and on a real
// Redis: whichever way a request comes, it is decided alike.
//
//	cases_test.go        the table
//	ways_test.go         the ways in
//	envoy_test.go        those of Envoy
//	grpc_test.go         that of gRPC calls
//	conformance_test.go  every case by every way
//
// Slots of Concurrency are no part of it: not every way sees the end of a request.
package conformance
