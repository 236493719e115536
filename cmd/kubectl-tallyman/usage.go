package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// kubeFlag marks the flags that kubectl has, too.
const kubeFlag = "kubectl"

// usageTemplate is cobra's for a command without commands, with the flags of kubectl
// apart from the command's own.
const usageTemplate = `Usage:
  {{.UseLine}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}

Flags:
{{ownFlags . | trimTrailingWhitespaces}}

Flags as kubectl has them:
{{kubeFlags . | trimTrailingWhitespaces}}
`

func init() {
	cobra.AddTemplateFunc("ownFlags", func(c *cobra.Command) string { return flagUsages(c, false) })
	cobra.AddTemplateFunc("kubeFlags", func(c *cobra.Command) string { return flagUsages(c, true) })
}

func flagUsages(c *cobra.Command, ofKubectl bool) string {
	chosen := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if (f.Annotations[kubeFlag] != nil) == ofKubectl {
			chosen.AddFlag(f)
		}
	})
	return chosen.FlagUsages()
}
