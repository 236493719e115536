// Package breaker is a circuit breaker: calls to something that keeps failing are
// refused at once instead of being waited for, and now and then one of them is
// let through to see whether it is back.
//
// A report belongs to a call on the wire, not to each of those who wait for it:
// sixty requests that share a pipeline fail once.
//
// Why not a library: sony/gobreaker v2.4 takes a mutex twice per call, which costs
// 130 ns on one core and 130 to 500 ns on two, where this one costs under 10
// (BenchmarkCall) of the 2 µs that a decision may take; it waits equally long
// before each probe, so that all processes that lost the store probe it at once;
// and a probe that never reports leaves it half-open for ever. failsafe-go's
// breaker has jitter, but the same mutex and the same lost probe, and its module
// brings gRPC and protobuf along.
package breaker
