// Package operator has the messages between the kubectl plugin and a sidecar or the
// manager: what is asked of their operator APIs, and what these answer. Both sides
// import it, so it needs the standard library only.
//
// Every body is JSON, and every error a problem document (RFC 9457) with a detail
// for people. Times are whole milliseconds, or microseconds where a name says so.
package operator
