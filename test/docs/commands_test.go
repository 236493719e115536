package docs

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// maxRun bounds a block of commands, which should take a second.
const maxRun = time.Minute

// Each command of the documentation runs, or is run by another test, or cannot be run
// for a reason; the last two are listed.
func TestCommandsRun(t *testing.T) {
	used := map[int]bool{}
	var clone *clone
	for _, p := range pages(t) {
		fresh := true
		for _, b := range p.blocks {
			script, ok := b.script()
			if !ok {
				continue
			}
			if row := elsewhereRow(p.name, script); row >= 0 {
				used[row] = true
				continue
			}
			if clone == nil {
				clone = newClone(t)
			}
			if fresh {
				clone.renew(t)
				fresh = false
			}
			clone.restore(t)
			if out, err := clone.run(t.Context(), script); err != nil {
				t.Errorf("%s:%d: %v\n%s\n%s\nMend it. If it cannot be run here, list it in test/docs/elsewhere_test.go:\n"+
					"\t{%q, %q, \"which test runs it, or why none does\"},", p.name, b.line, err, script, out, p.name, firstLine(script))
			}
		}
	}
	for i, row := range elsewhere {
		if !used[i] && row.page != anyPage {
			t.Errorf("test/docs/elsewhere_test.go: %s has no command %q: remove the row", row.page, row.command)
		}
	}
}

// elsewhereRow is the first row of elsewhere about a script, or -1.
func elsewhereRow(page, script string) int {
	for i, row := range elsewhere {
		if (row.page == page || row.page == anyPage) && strings.Contains(script, row.command) {
			return i
		}
	}
	return -1
}

func firstLine(script string) string {
	line, _, _ := strings.Cut(script, "\n")
	return strings.TrimSpace(line)
}

// run runs a script as a reader of the documentation would in a clone, and returns what
// it printed.
func (c *clone) run(ctx context.Context, script string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, maxRun)
	defer cancel()
	command := c.command(ctx, "bash", "-euo", "pipefail", "-c", script)
	out, err := command.CombinedOutput()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = errors.New("it does not end")
	}
	return string(out), err
}
