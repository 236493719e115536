package main

import (
	"context"
	"io"
	"os"
)

// inputName is what errors call an input.
func inputName(path string) string {
	if path == "-" {
		return "stdin"
	}
	return path
}

// openInput opens a file, or standard input for -, whose reading ends with ctx.
func openInput(ctx context.Context, path string, stdin io.Reader) (in io.Reader, closeInput func(), err error) {
	if path == "-" {
		r, w := io.Pipe()
		go func() { // until the program's end, if nobody writes any more
			_, err := io.Copy(w, stdin)
			_ = w.CloseWithError(err)
		}()
		stop := context.AfterFunc(ctx, func() { _ = w.CloseWithError(ctx.Err()) })
		return r, func() { stop() }, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	return f, func() { _ = f.Close() }, nil
}
