//go:build race

package limiter

// raceDetector has pools forget at random, so that allocations cannot be counted.
const raceDetector = true
