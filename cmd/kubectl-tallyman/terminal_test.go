package main

import (
	"os"
	"testing"
)

// Who sends the decisions there still wants to see how far they have come.
func TestTheNullDeviceIsNoTerminal(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if isTerminal(null) {
		t.Error("it is taken for a terminal")
	}
}
