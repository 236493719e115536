package replay

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// textKeys is how many keys of a limit are printed.
const textKeys = 5

// WriteText prints the report for people, in lines of at most so many columns where
// it can.
func (r *Report) WriteText(out io.Writer, columns int) error {
	w := bufio.NewWriter(out)
	r.writeLog(w)
	for _, warning := range r.Warnings {
		fmt.Fprintf(w, "warning: %s\n", printable(warning))
	}
	fmt.Fprintln(w)
	r.writeTable(w)
	for i := range r.Results {
		r.writeKeys(w, &r.Results[i])
	}
	r.writeChanges(w)
	for i := range r.Results {
		r.writeChart(w, &r.Results[i], columns)
	}
	return w.Flush()
}

func (r *Report) writeLog(w io.Writer) {
	l := &r.Log
	fmt.Fprintf(w, "%s: format %s, %d lines, %d requests from %s to %s\n",
		printable(l.Name), l.Format, l.Lines, l.Requests, clock(l.From), clock(l.To))
	if l.Mapping != "" {
		fmt.Fprintf(w, "fields: %s\n", printable(l.Mapping))
	}
	if bad := r.Passed(); bad > 0 {
		fmt.Fprintf(w, "lines that are no requests and were passed over: %d, such as\n", bad)
		for _, u := range l.Unreadable {
			fmt.Fprintf(w, "  %s:%d: %s\n", printable(l.Name), u.Line, printable(u.Reason))
		}
	}
	if l.StepsBack > 0 {
		fmt.Fprintf(w, "requests with an earlier time than one before them: %d, by up to %gs\n", l.StepsBack, l.LargestStepSeconds)
	}
	if l.NamedClients > 0 {
		fmt.Fprintf(w, "requests of clients that are known by name: %d; each name is taken for an address of its own\n", l.NamedClients)
	}
	if l.UnknownClients > 0 {
		fmt.Fprintf(w, "requests without a client's address: %d\n", l.UnknownClients)
	}
}

// clock is a time as it is printed.
func clock(t time.Time) string { return t.Format("2006-01-02 15:04:05Z") }

// writeTable prints a line for each limit, with the limits of both sides beside one
// another.
func (r *Report) writeTable(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(r.Results) == 1 {
		fmt.Fprint(table, "LIMIT\tADMITTED\tREFUSED\t%\tFIRST REFUSAL\tWORST MINUTE\n")
	} else {
		fmt.Fprintf(table, "\t%s\t\t\t%s\n", printable(r.Results[0].Policies), printable(r.Results[1].Policies))
		fmt.Fprint(table, "LIMIT\tADMITTED\tREFUSED\t%\tADMITTED\tREFUSED\t%\n")
	}
	for _, row := range r.Rows() {
		fmt.Fprint(table, row.Name)
		for _, c := range row.Counts {
			fmt.Fprint(table, "\t", c.cells())
			if len(r.Results) == 1 {
				fmt.Fprint(table, "\t", c.timeCells())
			}
		}
		if row.Shadow {
			fmt.Fprint(table, "  (shadow: refusals are not carried out)")
		}
		fmt.Fprintln(table)
	}
	_ = table.Flush() // w keeps its error
}

func (c *Counts) cells() string {
	if c == nil {
		return "-\t-\t-"
	}
	return fmt.Sprintf("%d\t%d\t%.2f", c.Admitted, c.Refused, c.RefusedPercent)
}

func (c *Counts) timeCells() string {
	if c.FirstRefusal == nil {
		return "-\t-"
	}
	worst := fmt.Sprintf("%s: %d", c.Worst.Start.Format("2006-01-02 15:04Z"), c.Worst.Refused)
	if c.Worst.Seconds != 60 {
		worst += fmt.Sprintf(" in %s", duration(c.Worst.Seconds))
	}
	return clock(*c.FirstRefusal) + "\t" + worst
}

// duration prints seconds in the largest unit that is exact.
func duration(seconds int64) string {
	switch {
	case seconds%86400 == 0:
		return fmt.Sprintf("%dd", seconds/86400)
	case seconds%3600 == 0:
		return fmt.Sprintf("%dh", seconds/3600)
	case seconds%60 == 0:
		return fmt.Sprintf("%dm", seconds/60)
	default:
		return fmt.Sprintf("%ds", seconds)
	}
}

func (r *Report) writeKeys(w io.Writer, result *Result) {
	for i := range result.Limits {
		l := &result.Limits[i]
		if len(l.MostRefused) == 0 {
			continue
		}
		by := ""
		if len(r.Results) > 1 {
			by = " of " + printable(result.Policies)
		}
		fmt.Fprintf(w, "\nMost refused by %s%s:\n", l.Name, by)
		writeKeyList(w, l.MostRefused[:min(textKeys, len(l.MostRefused))])
		if more := l.RefusedKeys - textKeys; more > 0 {
			fmt.Fprintf(w, "and of %d more\n", more)
		}
	}
}

func writeKeyList(w io.Writer, keys []KeyResult) {
	for _, k := range keys {
		by := ""
		if k.Limit != "" {
			by = "  by " + k.Limit
		}
		fmt.Fprintf(w, "%8d  %s%s\n", k.Refused, printable(k.Key), by)
	}
}

func (r *Report) writeChanges(w io.Writer) {
	if r.Changes == nil {
		return
	}
	before, after := printable(r.Results[0].Policies), printable(r.Results[1].Policies)
	fmt.Fprintf(w, "\nAdmitted by %s and refused by %s: %d", before, after, r.Changes.NewlyRefused)
	writeExamples(w, r.Changes.NewlyRefusedKeys)
	fmt.Fprintf(w, "Refused by %s and admitted by %s: %d", before, after, r.Changes.NewlyAdmitted)
	writeExamples(w, r.Changes.NewlyAdmittedKeys)
}

func writeExamples(w io.Writer, keys []KeyResult) {
	if len(keys) == 0 {
		fmt.Fprintln(w)
		return
	}
	fmt.Fprintln(w, ", most of them of these keys:")
	writeKeyList(w, keys)
}

// printable shows what a log or a file's name says, without what would steer the
// terminal.
func printable(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return s
	}
	return strconv.Quote(s)
}
