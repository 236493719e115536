// Package accesslog reads requests from access logs: those of nginx and Apache,
// of Envoy, and of whatever writes JSON.
//
// Logs are dirty. A line that is no request is counted and passed over, while
// the first few are kept to be shown; lines are bounded, and so is memory.
//
// The package is pure: it knows nothing of files, flags and policies. All that
// it returns is as it was logged and may hold secrets.
package accesslog
