// Package policy is the contract between the manager, which writes rate limit
// definitions to the store, and the sidecars, which enforce them.
//
// A Spec has the very JSON of a RateLimitPolicy's spec, so a YAML file, an
// object of the API server and a definition in Redis are read by one decoder
// (DecodeSpec), get the same defaults and are held to the same rules.
//
// The package imports the standard library only: it is linked into everything.
package policy
