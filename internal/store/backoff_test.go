package store

import (
	"testing"
	"time"
)

func TestBackoffDoublesToItsBound(t *testing.T) {
	for failures, want := range map[int]time.Duration{
		1: minBackoff, 2: 2 * minBackoff, 4: 8 * minBackoff, 7: maxBackoff, 1_000_000: maxBackoff,
	} {
		for range 100 {
			if got := backoff(failures, time.Hour); got < want/2 || got > want {
				t.Errorf("waits %v after %d failures, want %v to %v", got, failures, want/2, want)
			}
		}
	}
	if got := backoff(5, 3*time.Millisecond); got > 3*time.Millisecond {
		t.Errorf("waits %v, longer than allowed", got)
	}
}
