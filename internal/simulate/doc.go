// Package simulate runs a trace of requests against policies at the times that
// the trace says, without waiting for them.
//
// It reads a trace and writes decisions line by line, so that memory does not
// grow with the trace. Requests are matched and counted by the same code as in
// production; what is simulated is the clock, and that there is one process.
//
// The package knows nothing of files, flags and connections.
package simulate
