package replay

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/tallyman-dev/tallyman/internal/match"
)

// tally counts what was admitted and refused, in all and over time.
type tally struct {
	admitted, refused int64
	firstRefused      int64 // in µs since 1970; 0 for none
	series            series
}

func (t *tally) add(micros int64, admitted bool) {
	b := t.series.at(micros / 1e6)
	if admitted {
		t.admitted++
		b.admitted++
		return
	}
	t.refused++
	b.refused++
	if t.firstRefused == 0 || micros < t.firstRefused {
		t.firstRefused = micros
	}
}

// keyCounts count a limit's refusals, by the ID of the key.
type keyCounts map[string]*keyCount

type keyCount struct {
	text  string
	n     int64
	alone int64 // of requests that this limit refuses and the other side admits
}

// maxKeyText bounds the text of a key, in bytes.
const maxKeyText = 120

// find is the count of an ID, or nil. Keys without an ID, of requests that were
// refused for their key, are found by their texts.
func (k keyCounts) find(id string) *keyCount {
	if id == "" {
		return nil
	}
	return k[id]
}

// note begins to count a key. An ID that is not empty is kept.
func (k keyCounts) note(id, text string) *keyCount {
	text = strings.ToValidUTF8(match.CutText(text, maxKeyText), "\uFFFD")
	text = strings.Clone(text) // texts of a log hold on to all of a block
	if id == "" {
		id = text
	}
	if known := k[id]; known != nil {
		return known
	}
	c := &keyCount{text: text}
	k[id] = c
	return c
}

// topKeys are the n keys with the most refusals.
func topKeys(n int, all iter.Seq[KeyResult]) []KeyResult {
	top := []KeyResult{}
	for k := range all {
		i, _ := slices.BinarySearchFunc(top, k, func(a, b KeyResult) int {
			return cmp.Or(-cmp.Compare(a.Refused, b.Refused), strings.Compare(a.Key, b.Key), strings.Compare(a.Limit, b.Limit))
		})
		if i < n {
			top = slices.Insert(top, i, k)[:min(n, len(top)+1)]
		}
	}
	return top
}
