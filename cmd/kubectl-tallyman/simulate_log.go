package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/tallyman-dev/tallyman/internal/accesslog"
	"github.com/tallyman-dev/tallyman/internal/policy"
	"github.com/tallyman-dev/tallyman/internal/policyfile"
	"github.com/tallyman-dev/tallyman/internal/replay"
	"github.com/tallyman-dev/tallyman/internal/simulate"
)

// logOptions are the flags of simulate about an access log.
type logOptions struct {
	path, format, mapping string
	trustedHops           int
	versus                string
	html, decisions       string
	output                outputFormat
}

func (o *logOptions) addTo(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&o.path, "log", "", "`file` with an access log, as it is or in gzip; - is standard input")
	flags.StringVar(&o.format, "format", "", "`format` of the log: combined, common, envoy or json (default: told from the first lines)")
	flags.StringVar(&o.mapping, "map", "", "`fields` of a log of JSON, such as time=ts,method=request.method,path=uri,clientIP=remote_addr,header.X-Api-Key=api_key; "+
		"also request, query and host (default: those that are usual)")
	flags.IntVar(&o.trustedHops, "trusted-hops", 0, "`number` of proxies in front that append to X-Forwarded-For, as for the sidecar, where the log has that header")
	flags.StringVar(&o.versus, "versus", "", "`file` with other policies, to tell what they would change")
	flags.StringVar(&o.html, "html", "", "`file` to write the report to as a page with charts as well")
	flags.StringVar(&o.decisions, "decisions", "", "`file` to write what is decided about each request of the log to, by the policies of --filename")
	o.output.addTo(c)
}

// reading are the options of the log's reader.
func (o *logOptions) reading() (accesslog.Options, error) {
	options := accesslog.Options{Format: accesslog.Format(o.format), TrustedHops: o.trustedHops}
	if o.trustedHops < 0 {
		return options, errors.New("--trusted-hops must be 0 or more")
	}
	if o.mapping != "" {
		mapping, err := accesslog.ParseMapping(o.mapping)
		if err != nil {
			return options, fmt.Errorf("--map: %w", err)
		}
		options.Mapping = mapping
	}
	return options, nil
}

// runLog decides an access log. It checks all that it is given before it decides
// the first request. What was found is reported also when the log cannot be read
// to its end.
func (o *simulateOptions) runLog(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) (err error) {
	if err := o.keepInputs(); err != nil {
		return err
	}
	sets, err := o.readPolicies()
	if err != nil {
		return err
	}
	log, err := o.log.open(ctx, stdin, stderr)
	if err != nil {
		return err
	}
	defer log.close()
	clock := simulate.NewClock(time.Unix(0, 0))
	store, err := openStore(ctx, o.store, clock)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.close(ctx)) }()
	sides := sidesOf(sets, clock, store)
	closeDecisions, err := o.log.openDecisions(&sides[0])
	if err != nil {
		return err
	}

	r := replay.New(sides...)
	failed := runError(errors.Join(log.decide(ctx, r), closeDecisions()))
	if log.Stats().Requests == 0 {
		return errors.Join(failed, log.noRequests())
	}
	report := r.Report(log.name, log.Reader, warningsOf(sets, log.Fields()))
	return errors.Join(failed, o.log.write(report, stdout))
}

// keepInputs refuses to write over a file that is read.
func (o *simulateOptions) keepInputs() error {
	for output, written := range map[string]string{"--decisions": o.log.decisions, "--html": o.log.html} {
		for input, read := range map[string]string{"--log": o.log.path, "--filename": o.policies, "--versus": o.log.versus} {
			w, err := os.Stat(written)
			if err != nil {
				continue
			}
			if r, err := os.Stat(read); err == nil && os.SameFile(w, r) {
				return fmt.Errorf("%s would overwrite the file of %s: name another", output, input)
			}
		}
	}
	return nil
}

// openLog is an access log that is being read.
type openLog struct {
	*accesslog.Reader
	name     string
	progress *logProgress
	close    func()
}

func (o *logOptions) open(ctx context.Context, stdin io.Reader, stderr io.Writer) (*openLog, error) {
	reading, err := o.reading()
	if err != nil {
		return nil, err
	}
	in, closeInput, err := openInput(ctx, o.path, stdin)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	l := &openLog{name: inputName(o.path), close: closeInput}
	counted := &countingReader{in: in}
	l.progress = newLogProgress(stderr, in, counted)
	l.Reader, err = accesslog.NewReader(counted, reading)
	switch {
	case errors.Is(err, context.Canceled):
		closeInput()
		return nil, runError(err)
	case err != nil:
		closeInput()
		return nil, fmt.Errorf("read %s: %w", l.name, err)
	}
	return l, nil
}

func (l *openLog) decide(ctx context.Context, r *replay.Replay) error {
	for entries, err := range l.Batches(ctx) {
		if err != nil {
			return fmt.Errorf("read the log: %w", err)
		}
		if err := r.Decide(ctx, entries); err != nil {
			return err
		}
		l.progress.show(l.Stats().Requests, r.Latest())
	}
	return nil
}

// noRequests says that a log has nothing to decide.
func (l *openLog) noRequests() error {
	stats := l.Stats()
	if len(stats.Faults) == 0 {
		return nil // it could not be read
	}
	return fmt.Errorf("none of the %d lines of %s is a request in the format %s, such as %s:%d: %w",
		stats.Lines, l.name, l.Format(), l.name, stats.Faults[0].Line, stats.Faults[0].Err)
}

// openDecisions has the side write its decisions, if a file is given for them.
func (o *logOptions) openDecisions(side *replay.Side) (closeFile func() error, err error) {
	if o.decisions == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(o.decisions)
	if err != nil {
		return nil, fmt.Errorf("--decisions: %w", err)
	}
	side.Answers = simulate.NewAnswers(f)
	return func() error { return errors.Join(side.Answers.Flush(), f.Close()) }, nil
}

// write prints the report, and writes the page if one is asked for.
func (o *logOptions) write(report *replay.Report, stdout io.Writer) error {
	err := o.output.write(stdout, report, func(w io.Writer) error { return report.WriteText(w, columns(stdout)) })
	if err == nil && o.html != "" {
		var page bytes.Buffer
		if err = report.WriteHTML(&page); err == nil {
			err = os.WriteFile(o.html, page.Bytes(), 0o600) // it shows keys
		}
	}
	if err != nil {
		return failure{fmt.Errorf("write the report: %w", err)}
	}
	return nil
}

// policySet is what a policy file holds.
type policySet struct {
	file        string
	definitions []policy.Definition
	policies    simulate.Policies
}

// readPolicies reads one file, or two to compare.
func (o *simulateOptions) readPolicies() (sets []*policySet, err error) {
	files := []string{o.policies}
	if o.log.versus != "" {
		files = append(files, o.log.versus)
	}
	for _, file := range files {
		s := &policySet{file: file}
		err := policyfile.Read(file, "default", func(d policy.Definition) error {
			s.definitions = append(s.definitions, d)
			return s.policies.Add(d)
		})
		if err != nil {
			return nil, err
		}
		sets = append(sets, s)
	}
	return sets, nil
}

// sidesOf has each set count for itself in the store.
func sidesOf(sets []*policySet, clock *simulate.Clock, store *simulated) (sides []replay.Side) {
	for i, s := range sets {
		prefix := fmt.Sprintf("%s:%d", store.prefix, i)
		sides = append(sides, replay.Side{Name: s.file, Engine: simulate.NewEngine(&s.policies, clock, store.Store, prefix)})
	}
	return sides
}

// warningsOf are those about all sets, each once.
func warningsOf(sets []*policySet, fields accesslog.Fields) (all []string) {
	for _, s := range sets {
		for _, warning := range replay.Warnings(s.definitions, fields) {
			if !slices.Contains(all, warning) {
				all = append(all, warning)
			}
		}
	}
	return all
}
