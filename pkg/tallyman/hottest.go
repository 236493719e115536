package tallyman

import (
	"cmp"
	"container/heap"
	"slices"
)

const (
	// hotPlaces bounds the keys of a limit that are counted, at some 200 bytes each
	// and 1 KiB at most.
	hotPlaces = 256
	// toldKeys bounds those that are told.
	toldKeys = 100
)

// hottest finds the keys that most requests have, in bounded memory, by the
// algorithm Space-Saving (Metwally, Agrawal and El Abbadi: Efficient Computation of
// Frequent and Top-k Elements in Data Streams, ICDT 2005). When all places are taken,
// a new key gets that of the key with the smallest count, and starts from that count:
// of n requests, each key with more than n ÷ hotPlaces has a place.
//
// What a key starts from ranks it only. Told is what was counted since it has its
// place, which is never too much, and too little by n ÷ hotPlaces at most.
//
// It is for one goroutine at a time.
type hottest struct {
	places map[string]*hotKey
	ranked coldestFirst
	// others says that a key has lost its place.
	others bool
}

// hotKey is one key that has a place.
type hotKey struct {
	key, values       string
	start             int64
	admitted, refused int64
	at                int // in ranked
}

func (k *hotKey) count() int64 { return k.start + k.admitted + k.refused }

// add counts a request. values is asked for what a new key stands for.
func (h *hottest) add(key string, refused bool, values func() string) {
	k := h.places[key]
	if k == nil {
		k = h.place(key, values())
	}
	if refused {
		k.refused++
	} else {
		k.admitted++
	}
	heap.Fix(&h.ranked, k.at)
}

// place gives a new key a place.
func (h *hottest) place(key, values string) *hotKey {
	if h.places == nil {
		h.places = map[string]*hotKey{}
	}
	k := &hotKey{key: key, values: values}
	h.places[key] = k
	if len(h.ranked) < hotPlaces {
		heap.Push(&h.ranked, k)
		return k
	}
	coldest := h.ranked[0]
	delete(h.places, coldest.key)
	h.others = true
	k.start, h.ranked[0] = coldest.count(), k
	return k
}

// top are the keys with most requests, most first.
func (h *hottest) top() []hotKey {
	keys := make([]hotKey, len(h.ranked))
	for i, k := range h.ranked {
		keys[i] = *k
	}
	slices.SortFunc(keys, func(a, b hotKey) int {
		return cmp.Or(cmp.Compare(b.admitted+b.refused, a.admitted+a.refused), cmp.Compare(a.key, b.key))
	})
	return keys[:min(len(keys), toldKeys)]
}

// coldestFirst is a heap with the key of the smallest count at its head.
type coldestFirst []*hotKey

func (c coldestFirst) Len() int           { return len(c) }
func (c coldestFirst) Less(i, j int) bool { return c[i].count() < c[j].count() }

func (c coldestFirst) Swap(i, j int) {
	c[i], c[j] = c[j], c[i]
	c[i].at, c[j].at = i, j
}

// Push implements heap.Interface.
func (c *coldestFirst) Push(x any) {
	k := x.(*hotKey)
	k.at = len(*c)
	*c = append(*c, k)
}

// Pop implements heap.Interface. Places are taken over, and never given up.
func (c *coldestFirst) Pop() any { panic("not used") }
