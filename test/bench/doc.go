// Command bench measures Tallyman's engine against other rate limiters for Go and
// against the floor, a bare Redis command, on one redis-server that it starts
// itself on 127.0.0.1; and the sidecar's proxy beside other proxies.
// docs/performance.md says how to use it and what its columns mean.
//
// All cases take their contestants in turn, round after round, so that what
// else the machine does strikes all alike; what it reports are medians. It needs
// Linux, for the CPU time of other processes.
//
// It is a module of its own so that the peers stay out of the product's.
package main
