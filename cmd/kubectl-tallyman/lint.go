package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tallyman-dev/tallyman/internal/lint"
	"github.com/tallyman-dev/tallyman/internal/match"
	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/policyfile"
	"github.com/tallyman-dev/tallyman/internal/simulate"
	"github.com/tallyman-dev/tallyman/internal/view"
)

const lintLong = `Check policies as the API server, the manager and the sidecars do, without any
of them, and look for what is legal and probably not meant.

Of a directory, all files *.yaml, *.yml and *.json that speak of tallyman.dev/ are
read, and those in the directories in it. Objects of other kinds are passed
over. Whether the targets of a policy exist is not looked at.

Each finding is a line on standard output, "file:line: error: ..." or
"file:line: warning: ...", and a summary follows on standard error.

Of a file with errors no warnings are told. The exit code is 0 when there is no
error, and 2 when there is one, or with --strict a warning.`

const lintExample = `  # All policies of a repository
  kubectl tallyman lint deploy/

  # What a chart makes
  helm template . | kubectl tallyman lint -

  # For a program
  kubectl tallyman lint -o json policy.yaml`

// severity of a finding.
type severity string

const (
	severityError   severity = "error"
	severityWarning severity = "warning"
)

// finding is one thing that lint has to say.
type finding struct {
	File     string   `json:"file"`
	Line     int      `json:"line"`
	Severity severity `json:"severity"`
	Policy   string   `json:"policy,omitempty"`
	Message  string   `json:"message"`
}

// linter collects findings.
type linter struct {
	findings []finding
	files    map[string]bool
	policies int
}

func newLintCommand() *cobra.Command {
	var files inputs
	var strict bool
	var output outputFormat
	c := &cobra.Command{
		Use:     "lint FILE|DIRECTORY|- ...",
		Short:   "Check policies offline",
		Long:    lintLong,
		Example: lintExample,
		RunE: func(c *cobra.Command, args []string) error {
			paths, err := files.with(args)
			if err != nil {
				return err
			}
			l := linter{findings: []finding{}, files: map[string]bool{}}
			for _, path := range paths {
				if err := l.path(c.Context(), path, c.InOrStdin()); err != nil {
					return err
				}
			}
			return l.report(output, strict, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	files.addTo(c.Flags())
	c.Flags().BoolVar(&strict, "strict", false, "count warnings as errors")
	output.addTo(c)
	return c
}

// path reads a file, all of a directory, or standard input.
func (l *linter) path(ctx context.Context, path string, stdin io.Reader) error {
	if path == "-" {
		data, err := readInput(ctx, path, stdin)
		if err != nil {
			return runError(fmt.Errorf("read standard input: %w", err))
		}
		l.text(inputName(path), data)
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return l.directory(ctx, path)
	}
	data, err := readInput(ctx, path, stdin)
	if err != nil {
		return err
	}
	l.text(path, data)
	return nil
}

// directory reads all manifests in a directory that speak of Tallyman. Links lead to
// files, and not to directories.
func (l *linter) directory(ctx context.Context, path string) error {
	// With a separator at its end, a link to a directory is the directory.
	return filepath.WalkDir(path+string(filepath.Separator), func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !isManifest(name) {
			return err
		}
		data, err := readInput(ctx, name, nil)
		if err != nil {
			return err
		}
		if bytes.Contains(data, []byte("tallyman.dev/")) {
			l.text(name, data)
		}
		return nil
	})
}

// readInput reads a policy file, or standard input for -.
func readInput(ctx context.Context, path string, stdin io.Reader) ([]byte, error) {
	in, closeInput, err := openInput(ctx, path, stdin)
	if err != nil {
		return nil, err
	}
	defer closeInput()
	return policyfile.ReadAll(in)
}

// isManifest says whether a file may hold policies. What is no file, such as a link to
// nothing, which editors make, does not.
func isManifest(name string) bool {
	if !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
		return false
	}
	info, err := os.Stat(name)
	return !errors.Is(err, fs.ErrNotExist) && (err != nil || info.Mode().IsRegular())
}

// text checks a file, unless it was checked already.
func (l *linter) text(file string, data []byte) {
	if l.files[filepath.Clean(file)] {
		return
	}
	l.files[filepath.Clean(file)] = true
	before := len(l.findings)
	l.add(severityError, policyfile.Parse(file, data, "default", l.check))
	if len(l.findings) == before {
		l.add(severityWarning, policyfile.Parse(file, data, "default", warn))
	}
}

// check is how a policy is judged that is enforced.
func (l *linter) check(d policy.Definition) error {
	err := new(simulate.Policies).Add(d)
	if err == nil {
		l.policies++
	}
	return err
}

// warn returns what is legal and probably not meant in a policy that was checked.
func warn(d policy.Definition) error {
	compiled, err := match.Compile(&d.Spec)
	if err != nil {
		return err
	}
	if all := lint.Warnings(&d.Spec, compiled); len(all) > 0 {
		return all
	}
	return nil
}

func (l *linter) add(s severity, err error) {
	faults, _ := errors.AsType[policyfile.Faults](err) // it is of no other kind
	for _, f := range faults {
		if !f.Foreign {
			l.findings = append(l.findings, finding{File: f.File, Line: f.Line, Severity: s, Policy: f.Policy, Message: f.Err.Error()})
		}
	}
}

// report prints the findings, and returns an error if there is one among them.
func (l *linter) report(format outputFormat, strict bool, stdout, stderr io.Writer) error {
	slices.SortStableFunc(l.findings, func(a, b finding) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	if err := format.write(stdout, l.findings, l.lines); err != nil {
		return failure{err}
	}
	errs := 0
	for _, f := range l.findings {
		if f.Severity == severityError {
			errs++
		}
	}
	warnings := len(l.findings) - errs
	fmt.Fprintf(stderr, "%s, %s: %s, %s\n",
		view.Count(len(l.files), "file"), view.Count(l.policies, "valid policy"), view.Count(errs, "error"), view.Count(warnings, "warning"))
	switch {
	case errs > 0:
		return errors.New("there are policies that would not be enforced")
	case strict && warnings > 0:
		return errors.New("there are warnings, and --strict counts them as errors")
	case l.policies == 0:
		return errors.New("no RateLimitPolicy was found")
	}
	return nil
}

func (l *linter) lines(w io.Writer) error {
	for _, f := range l.findings {
		what := f.Message
		if f.Policy != "" {
			what = fmt.Sprintf("policy %q: %s", f.Policy, f.Message)
		}
		if _, err := fmt.Fprintf(w, "%s:%d: %s: %s\n", f.File, f.Line, f.Severity, what); err != nil {
			return err
		}
	}
	return nil
}
