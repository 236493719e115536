// Package envoy serves a tallyman.Limiter by Envoy's gRPC protocols: its rate
// limit service (envoy.service.ratelimit.v3) and its external authorization
// (envoy.service.auth.v3). docs/envoy.md tells how to point an Envoy at it.
//
//	server.go         the gRPC server's life, and its health service
//	ratelimit.go      the rate limit service
//	descriptor.go     a descriptor as the request that policies look at
//	status.go         a decision as the status of a descriptor
//	authorization.go  external authorization
//	headers.go        response headers as Envoy takes them
package envoy
