// Package operator has the messages between the kubectl plugin and a sidecar: what
// is asked of the sidecar's operator API, and what it answers. Both sides import it,
// so it needs the standard library only.
//
// Every body is JSON, and every error a problem document (RFC 9457) with a detail
// for people. All times are whole milliseconds.
package operator
