package policyfile

import (
	"errors"
	"strings"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// No file makes the reader panic, and each fault is in a line that the file has.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		head + one, "0: 000000\n0", "# nothing\n---\n", "a: b: c\n", "--- # a comment\n" + head + "metadata: {name: o}\nspek: {}\n" + one,
		head + "spec:\n  selector: {}\n  limits:\n  - &l {name: x, requests: -1, window: 1d}\n  - *l\n", "a: &a [*a]\n", "---\r\n{kind: \"", "kind: List\nitems: [", "<<: {a: 1}\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		err := Parse("p.yaml", []byte(text), "default", func(policy.Definition) error { return errors.New("not today") })
		faults, ok := errors.AsType[Faults](err)
		if !ok {
			t.Fatalf("got %v", err)
		}
		for _, fault := range faults {
			if last := strings.Count(text, "\n") + 1; fault.Line < 1 || fault.Line > last {
				t.Errorf("%v is not in the %d lines of %q", fault, last, text)
			}
		}
	})
}
