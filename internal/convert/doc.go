// Package convert makes RateLimitPolicies of the configuration of Envoy's rate limit
// service, https://github.com/envoyproxy/ratelimit. They decide the calls that reach
// the sidecar by that protocol (internal/sidecar/envoy) as that service would.
//
//	parse.go    a file as trees of descriptors, each with its line
//	fields.go   the fields of a YAML mapping
//	convert.go  a tree as limits
//	match.go    which descriptors a limit is for
//	names.go    the names of policies and limits
//	write.go    policies as YAML
//
// What that service refuses to load is an error. What it has and policies have not is
// told as a Finding, and the rest is converted.
//
// The package is pure: it knows nothing of flags and files.
package convert
