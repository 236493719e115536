package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/tallyman-dev/tallyman/internal/convert"
	"github.com/tallyman-dev/tallyman/internal/view"
)

const convertLong = `Make policies of the configuration of Envoy's rate limit service
(https://github.com/envoyproxy/ratelimit), for an Envoy that asks a sidecar's
--grpc-listen instead.

Files have a domain and its descriptors each, or are ConfigMaps that hold such
files; other objects are passed over. The policies of all domains are written to
standard output, or to the file of -o. Each limit has a comment that names the line
that it comes from.

What policies do not have is told on standard error, "file:line: lost: ...".
The exit code is 0 when policies have been written, and 2 when a file is not valid
or, with --strict, something was lost. With --strict nothing is written then.

See docs/migration-envoy.md for the whole way.`

const convertExample = `  # A file
  kubectl tallyman convert config.yaml > policies.yaml

  # What a rate limit service in the cluster has, for the pods with an Envoy
  kubectl get configmap ratelimit-config -o yaml |
    kubectl tallyman convert - --namespace edge --selector app=gateway | kubectl apply -f -`

// convertOptions are the flags of convert.
type convertOptions struct {
	convert.Options
	inputs inputs
	output string
	strict bool
}

func newConvertCommand() *cobra.Command {
	var o convertOptions
	c := &cobra.Command{
		Use:     "convert FILE|- ...",
		Short:   "Make policies of a configuration of Envoy's rate limit service",
		Long:    convertLong,
		Example: convertExample,
		RunE: func(c *cobra.Command, args []string) error {
			paths, err := o.inputs.with(args)
			if err != nil {
				return err
			}
			return o.run(c.Context(), paths, c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := c.Flags()
	o.inputs.addTo(flags)
	flags.StringVar(&o.Name, "name", "", "`name` of the policy; of several domains, each has its own behind it (default: the domain)")
	flags.StringVarP(&o.Namespace, "namespace", "n", "", "`namespace` of the policy (default: none, so that kubectl apply's own one counts)")
	flags.StringToStringVarP(&o.Selector, "selector", "l", nil, "`labels` of the pods that answer Envoy, such as app=gateway (default: all pods of the namespace)")
	flags.Lookup("selector").DefValue = "" // not []
	flags.StringVarP(&o.output, "output", "o", "", "`file` to write to (default: standard output)")
	flags.BoolVar(&o.strict, "strict", false, "write nothing when something is lost")
	return c
}

func (o *convertOptions) run(ctx context.Context, paths []string, stdin io.Reader, stdout, stderr io.Writer) error {
	var inputs []convert.Input
	for _, path := range paths {
		data, err := readInput(ctx, path, stdin)
		if err != nil {
			return err
		}
		inputs = append(inputs, convert.Input{Name: inputName(path), Data: data})
	}
	result, err := convert.Convert(inputs, o.Options)
	if err != nil {
		return err
	}
	for _, lost := range result.Lost {
		fmt.Fprintf(stderr, "%s:%d: lost: %s\n", lost.File, lost.Line, lost.Text)
	}
	fmt.Fprintf(stderr, "%s, %s: %s lost\n",
		view.Count(len(result.Policies), "policy"), view.Count(result.Limits(), "limit"), view.Count(len(result.Lost), "thing"))
	switch {
	case o.strict && len(result.Lost) > 0:
		return errors.New("something is lost, and --strict forbids that")
	case len(result.Policies) == 0:
		return errors.New("there is no limit to make a policy of")
	}
	return o.write(result, stdout)
}

func (o *convertOptions) write(result *convert.Result, stdout io.Writer) error {
	var text bytes.Buffer
	err := result.WriteYAML(&text)
	switch {
	case err != nil:
	case o.output == "":
		_, err = text.WriteTo(stdout)
	default:
		err = os.WriteFile(o.output, text.Bytes(), 0o600)
	}
	if err != nil {
		return failure{fmt.Errorf("write the policies: %w", err)}
	}
	return nil
}
