package policyfile

import (
	"fmt"
	"strings"
	"testing"
)

// What a file costs grows with its size, and not with its square.
func TestDocumentsHoldEachLineOnce(t *testing.T) {
	text, held := strings.Repeat("---\na: 1\n", 1000), 0
	for d := range documents([]byte(text)) {
		held += len(d.text)
	}
	if held > len(text) {
		t.Errorf("the documents of %d bytes hold %d", len(text), held)
	}
}

func TestADocumentIsReadOnceForAllOfItsLines(t *testing.T) {
	const items = 1000
	for d := range documents([]byte("---\nlist:\n" + strings.Repeat("- a\n", items))) {
		last := fmt.Sprintf("list[%d]", items-1)
		if line := d.lineOf(last); line != 2+items {
			t.Errorf("the last item is in line %d", line)
		}
		if n := testing.AllocsPerRun(1, func() { d.lineOf(last) }); n > items/10 {
			t.Errorf("to find a further line takes %v allocations", n)
		}
	}
}
