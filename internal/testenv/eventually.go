package testenv

import (
	"testing"
	"time"
)

// Patience bounds what should take a moment: tests run beside compilers.
const Patience = time.Minute

// Eventually waits until check finds nothing to complain of.
func Eventually(t testing.TB, check func() error) {
	t.Helper()
	deadline := time.After(Patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("still after %v: %v", Patience, err)
		}
	}
}
