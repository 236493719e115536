package limiter

import "time"

// NewSimulatedMemory is a Memory for simulated time, which may go back by any
// step: it keeps counters for good, as Redis does while time is simulated, since
// one that is of no use any more is of use again when the clock goes back.
func NewSimulatedMemory(now func() time.Time) *Memory {
	m := NewMemory(now)
	m.linger = 1 << 52 // 142 years in µs
	return m
}
