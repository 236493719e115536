// Package arch has no code: its test holds the rules of who may import whom.
//
// The rules keep the sidecar small, the library free of Kubernetes and the pure
// parts testable on their own. A change of the table is a change of the
// architecture: say why.
package arch
