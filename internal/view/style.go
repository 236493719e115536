package view

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/tallyman-dev/tallyman/internal/policy"
)

// Style says how a text may look.
type Style struct {
	// Color is for terminals of people who want it.
	Color bool
}

// color is the SGR code of a terminal.
type color int

const (
	plain  color = 0
	bold   color = 1
	red    color = 31
	green  color = 32
	yellow color = 33
)

func (s Style) paint(c color, text string) string {
	if !s.Color || c == plain || text == "" {
		return text
	}
	return "\x1b[" + strconv.Itoa(int(c)) + "m" + text + "\x1b[0m"
}

const (
	// maxText bounds what is shown of a value that clients choose, in characters.
	maxText = 64
	// maxMessage bounds a message of somebody else's.
	maxMessage = 1024
)

// clean is a value without what a terminal would obey, and without its end if it is
// long.
func clean(value string) string { return cleanTo(maxText, value) }

// message is clean for sentences.
func message(value string) string { return cleanTo(maxMessage, value) }

// Lines is a text of somebody else's, such as an error, without what a terminal would
// obey. Only line breaks stay as they are.
func Lines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = whole(line)
	}
	return strings.Join(lines, "\n")
}

// whole is clean for a value that has all of its length, such as a name.
func whole(value string) string { return cleanTo(math.MaxInt, value) }

func cleanTo(most int, value string) string {
	var b strings.Builder
	n := 0
	for _, r := range value {
		if n++; n > most {
			b.WriteString("…")
			break
		}
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}

func cleanAll(values []string) string {
	cleaned := make([]string, len(values))
	for i, v := range values {
		cleaned[i] = clean(v)
	}
	return strings.Join(cleaned, ", ")
}

// writeNotes shows notes below what they are about.
func writeNotes(b *strings.Builder, notes []string, s Style) {
	for i, note := range notes {
		if i == 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(b, "%s %s\n", s.paint(yellow, "note:"), message(note))
	}
}

// wait is a time to wait in milliseconds, for people. Seconds are enough beyond a few
// of them, and are rounded up: earlier would be too early.
func wait(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	if d > time.Second {
		d = (d + time.Second - 1).Truncate(time.Second)
	}
	return policy.Duration(d).String()
}

// length is a length of time in milliseconds, exactly.
func length(ms int64) string {
	return policy.Duration(time.Duration(ms) * time.Millisecond).String()
}

// Count is "1 limit", "2 limits".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, ok := strings.CutSuffix(noun, "y"); ok {
		return fmt.Sprintf("%d %sies", n, stem)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
