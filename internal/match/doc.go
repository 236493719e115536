// Package match goes from a request to the limits that it meets, with the key
// and the cost of each. It is pure: no clock, no store, no server.
//
// A policy is compiled once (Compile) and then asked for every request
// (Limit.Evaluate). Everything a client can choose is bounded: strings longer
// than MaxInput are not looked into, regular expressions run in linear time
// and have a bounded size, and CEL expressions have a bounded cost.
//
// What cannot be evaluated falls to the safe side, so that no request gets out
// of a limit by breaking its evaluation:
//
//	match   the limit applies
//	except  the request is not excepted
//	key     the part is missing, as if the client had not sent it
//	cost    1
//
// The package imports the standard library, internal/policy and cel-go.
package match
