// Command kubectl-tallyman is the kubectl plugin of Tallyman. See --help.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"

	"github.com/tallyman-dev/tallyman/internal/view"
)

// Exit codes besides 0.
const (
	exitFailed  = 1 // what was asked for could not be done
	exitInvalid = 2 // what was asked for is not valid: arguments or files
	exitNo      = 3 // the answer to a question of yes or no is no
)

func main() {
	logging.Disable()              // go-redis's own log; its errors reach us
	signal.Ignore(syscall.SIGPIPE) // a write then fails, and there is time to clean up
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	err := newCommand().ExecuteContext(ctx)
	if err != nil && !errors.Is(err, errNo) {
		fmt.Fprintln(os.Stderr, "kubectl-tallyman:", view.Lines(err.Error()))
	}
	os.Exit(exitCode(err))
}

// failure marks an error that has its cause outside of what the user wrote.
// All others, such as those of cobra about arguments, are the user's to mend.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// errNo is the answer no of a command that has told it already.
var errNo = errors.New("no")

func exitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errNo):
		return exitNo
	case errors.As(err, new(failure)):
		return exitFailed
	default:
		return exitInvalid
	}
}

const rootLong = `Tools for Tallyman's rate limits. On the PATH, this program is kubectl's command
tallyman.

  Why was this request refused?   kubectl tallyman explain POD --request 'GET /' -H …
  Who is hitting the limits?      kubectl tallyman top
  Is every pod enforcing?         kubectl tallyman status
  Is this policy right?           kubectl tallyman lint policy.yaml
  Would it hurt?                  kubectl tallyman simulate -f policy.yaml --log access.log

Exit codes: 0 when it was done or the answer is yes, 1 when it could not be done, 2 when
an argument is not valid, and 3 when the answer is no (status, explain --request).`

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:     "kubectl-tallyman",
		Short:   "Tools for Tallyman's rate limits",
		Long:    rootLong,
		Version: version(),
		// As who has it on the PATH calls it.
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl tallyman"},
		// main prints errors, each with its exit code.
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w (see %s --help)", err, c.CommandPath())
	})
	root.AddCommand(
		newConvertCommand(), newLintCommand(), newSimulateCommand(),
		newExplainCommand(), newTopCommand(), newStatusCommand(),
		newResetCommand(), newRefundCommand(), newBanCommand(), newUnbanCommand(),
	)
	return root
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
