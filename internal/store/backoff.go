package store

import (
	"math/rand/v2"
	"time"
)

// Waits after failures double from the first to the second of these.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// backoff is the wait after so many failures in a row, 1 or more, but no longer
// than longest. It is a random part, half to all, of the doubled one: a server
// that comes back is not met by everybody at once.
func backoff(failures int, longest time.Duration) time.Duration {
	wait := min(minBackoff<<min(failures-1, 16), maxBackoff, longest)
	return wait/2 + rand.N(wait/2+1)
}

// jitter varies a duration by ±10 %.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}
