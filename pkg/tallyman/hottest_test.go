package tallyman

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// Whatever comes in which order: each key with more than its share of the requests
// is found, and is told no more than it had, and hardly less.
func TestTheHottestKeysAreFound(t *testing.T) {
	none := func() string { return "" }
	random := rand.New(rand.NewPCG(1, 2))
	for name, keys := range map[string]func(i int) int{
		"few keys":      func(int) int { return random.IntN(hotPlaces) },
		"a long tail":   func(int) int { return int(random.ExpFloat64() * random.ExpFloat64() * 300) },
		"a flood":       func(i int) int { return i },
		"some in flood": func(i int) int { return i * (i % 3) * (i % 5) },
		"late comers":   func(i int) int { return i/50_000 + i*(i%2) },
	} {
		var h hottest
		admitted, refused := map[string]int64{}, map[string]int64{}
		const n = 100_000
		for i := range n {
			key := fmt.Sprint(keys(i))
			over := random.IntN(3) == 0
			h.add(key, over, none)
			if over {
				refused[key]++
			} else {
				admitted[key]++
			}
		}
		if len(h.places) > hotPlaces || len(h.ranked) != len(h.places) {
			t.Errorf("%s: %d keys have a place, in a list of %d", name, len(h.places), len(h.ranked))
		}
		if h.others != (len(admitted) > hotPlaces || len(refused) > hotPlaces) {
			t.Errorf("%s: other keys: %v", name, h.others)
		}
		const share = n / hotPlaces
		for key := range admitted {
			all := admitted[key] + refused[key]
			k := h.places[key]
			switch {
			case k == nil && all > share:
				t.Errorf("%s: the key %s with %d requests has no place", name, key, all)
			case k == nil:
			case k.admitted > admitted[key] || k.refused > refused[key] || k.admitted+k.refused < all-share:
				t.Errorf("%s: %+v, of %d and %d", name, k, admitted[key], refused[key])
			}
		}
		top := h.top()
		for i := range top[1:] {
			if top[i].admitted+top[i].refused < top[i+1].admitted+top[i+1].refused {
				t.Errorf("%s: %+v comes before %+v", name, top[i], top[i+1])
			}
		}
		if len(top) > toldKeys {
			t.Errorf("%s: %d keys are told", name, len(top))
		}
	}
}

func BenchmarkHottest(b *testing.B) {
	var h hottest
	keys := make([]string, 10_000)
	for i := range keys {
		keys[i] = fmt.Sprint("tallyman:c:shop:orders:per-client:", i)
	}
	values := func() string { return "value" }
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		h.add(keys[i%len(keys)], false, values)
	}
}
