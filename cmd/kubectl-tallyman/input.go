package main

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"

	"github.com/spf13/pflag"
)

// inputs are the files that a command reads: its arguments, and those of -f, which
// kubectl's own commands have.
type inputs struct{ flagged []string }

func (in *inputs) addTo(flags *pflag.FlagSet) {
	flags.StringSliceVarP(&in.flagged, "filename", "f", nil, "`file` to read, as an argument is")
}

// with are all inputs, of which there has to be one.
func (in *inputs) with(args []string) ([]string, error) {
	all := slices.Concat(in.flagged, args)
	if len(all) == 0 {
		return nil, errors.New("there is no file to read: name one, or write - for standard input")
	}
	return all, nil
}

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
