package main

import (
	"encoding/json"
	"errors"
	"io"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// outputFormat is for whom a command writes.
type outputFormat string

const (
	formatText outputFormat = "" // for people, and the default
	formatJSON outputFormat = "json"
	formatYAML outputFormat = "yaml"
)

func (f *outputFormat) addTo(c *cobra.Command) {
	c.Flags().VarP(f, "output", "o", "`format`: table for people, json or yaml for programs (default table)")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
}

// String implements pflag.Value.
func (f *outputFormat) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *outputFormat) Type() string { return "format" }

// Set implements pflag.Value.
func (f *outputFormat) Set(text string) error {
	switch format := outputFormat(text); format {
	case "table":
		*f = formatText
	case formatJSON, formatYAML:
		*f = format
	default:
		return errors.New("write table, json or yaml")
	}
	return nil
}

// write writes a value for programs, or has text written for people.
func (f outputFormat) write(w io.Writer, value any, text func(io.Writer) error) error {
	if f == formatText {
		return text(w)
	}
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	if f == formatYAML {
		if data, err = yaml.JSONToYAML(data); err != nil {
			return err
		}
	} else {
		data = append(data, '\n')
	}
	_, err = w.Write(data)
	return err
}
