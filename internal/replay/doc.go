// Package replay tells what policies would have done to the requests of an access
// log: how many each limit would have admitted and refused, of whom, and when; and
// what would change with other policies.
//
// Requests are decided by internal/simulate. Memory grows with the number of keys
// and, up to a bound, with the time that the log covers, not with its lines.
//
// The package is pure: it knows nothing of files, flags and terminals. Reports show
// keys as they were logged.
package replay
