package main

import (
	"io"
	"os"

	"golang.org/x/term"
)

// defaultColumns is the width of what is not written to a terminal.
const defaultColumns = 72

// columns is the width of a terminal.
func columns(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return defaultColumns
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
