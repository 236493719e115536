package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// confirmation is how a command that changes something makes sure of it.
type confirmation struct{ yes, dryRun bool }

func (o *confirmation) addTo(c *cobra.Command) {
	c.Flags().BoolVarP(&o.yes, "yes", "y", false, "do not ask for confirmation")
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "say what would be done, and do nothing")
}

// check says that nobody can be asked, before anything is done.
func (o *confirmation) check(stdin io.Reader) error {
	if o.yes || o.dryRun {
		return nil
	}
	if f, ok := stdin.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return errors.New("there is no terminal to ask for confirmation: write --yes, or --dry-run to see what would be done")
}

// confirm says what is going to be done, and returns whether to do it. An answer that
// is not yes is an error.
func (o *confirmation) confirm(what string, stdin io.Reader, stderr io.Writer) (goOn bool, err error) {
	switch {
	case o.dryRun:
		fmt.Fprintf(stderr, "%s (dry run: nothing is done)\n", what)
		return false, nil
	case o.yes:
		return true, nil
	}
	fmt.Fprintf(stderr, "%s? [y/N] ", what)
	line, err := bufio.NewReader(stdin).ReadString('\n')
	switch answer := strings.ToLower(strings.TrimSpace(line)); {
	case answer == "y" || answer == "yes":
		return true, nil
	case err != nil:
		return false, failure{fmt.Errorf("not confirmed: %w", err)}
	default:
		return false, failure{errors.New("not confirmed: nothing was done")}
	}
}
