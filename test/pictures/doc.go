// Package pictures draws what limits admit over time, for the pages of
// docs/algorithms and docs/distributions.
//
// A picture of an algorithm is a trace beside the pages, decided by the simulator. One
// of a distribution is three pods, each with the engine of a sidecar, over one store in
// simulated time. The tests compare the pictures in docs/images with what comes out now;
// make pictures writes them.
package pictures
