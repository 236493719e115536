package main

import (
	"runtime/debug"
	"testing"
)

func TestMemoryLimitLeavesATenthOfTheContainers(t *testing.T) {
	for text, want := range map[string]int64{
		"134217728\n": 120795948, "max\n": 0, "": 0, "garbage": 0,
	} {
		if got := memoryLimit(text); got != want {
			t.Errorf("%q makes %d, want %d", text, got, want)
		}
	}
}

func TestWhatUsersSetIsLeftAlone(t *testing.T) {
	percent, limit := debug.SetGCPercent(150), debug.SetMemoryLimit(1<<40)
	t.Cleanup(func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	})
	tuneMemory(func(string) string { return "set" })
	if got := debug.SetMemoryLimit(-1); got != 1<<40 {
		t.Errorf("GOMEMLIMIT became %d", got)
	}
	if got := debug.SetGCPercent(150); got != 150 {
		t.Errorf("GOGC became %d", got)
	}
	tuneMemory(func(name string) string { return map[string]string{"GOMEMLIMIT": "set"}[name] })
	if got := debug.SetGCPercent(150); got != gcPercent {
		t.Errorf("without GOGC it is %d, want %d", got, gcPercent)
	}
	if got := debug.SetMemoryLimit(-1); got != 1<<40 {
		t.Errorf("GOMEMLIMIT became %d", got)
	}
}
