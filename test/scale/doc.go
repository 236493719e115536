// Command scale measures Tallyman in a large installation, with real parts: a
// kube-apiserver with etcd, a redis-server and the manager, each a process of its
// own, and as many enforcers as there are watchers, which are the library in this
// process. docs/scale.md says how to use it and what its figures mean.
//
//	main.go      flags, and what the steps of a run share
//	steps.go     the steps, in their order
//	cluster.go   the objects in the API server, and what was written to it
//	statuses.go  what the policies' statuses say
//	redis.go, manager.go, process.go  the other processes, and what they use
//	fleet.go, edit.go  the watchers, and what they enforce when
//	figures.go   what came out, and the targets
//
// It needs Linux, for the memory and the CPU time of other processes.
package main
