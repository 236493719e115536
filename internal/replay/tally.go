package replay

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
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

// keyCounts count requests by key. The zero value is empty.
type keyCounts struct {
	byID  map[string]*keyCount
	total int64 // only for changes
}

type keyCount struct {
	limit string // only for changes
	text  string
	n     int64
}

// maxKeyText bounds the text of a key, in bytes.
const maxKeyText = 120

// find is the count of an ID, or nil. Keys without an ID, of requests that were
// refused for their key, are found by their texts.
func (k *keyCounts) find(id string) *keyCount {
	if id == "" {
		return nil
	}
	return k.byID[id]
}

// note begins to count a key. An ID that is not empty is kept.
func (k *keyCounts) note(id, text string) *keyCount {
	if len(text) > maxKeyText {
		cut := maxKeyText
		for cut > 0 && !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut] + "…"
	}
	text = strings.Clone(strings.ToValidUTF8(text, "\uFFFD")) // texts of a log hold on to all of a block
	if id == "" {
		id = text
	}
	if known := k.byID[id]; known != nil {
		return known
	}
	if k.byID == nil {
		k.byID = map[string]*keyCount{}
	}
	c := &keyCount{text: text}
	k.byID[id] = c
	return c
}

// top are the n keys with the most requests.
func (k *keyCounts) top(n int) []*keyCount {
	var top []*keyCount
	for _, c := range k.byID {
		i, _ := slices.BinarySearchFunc(top, c, func(a, b *keyCount) int {
			return cmp.Or(-cmp.Compare(a.n, b.n), strings.Compare(a.text, b.text), strings.Compare(a.limit, b.limit))
		})
		if i < n {
			top = slices.Insert(top, i, c)[:min(n, len(top)+1)]
		}
	}
	return top
}
