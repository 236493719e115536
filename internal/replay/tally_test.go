package replay

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// Whatever the order and the distance of times, nothing is lost, memory is bounded,
// and a frame covers all of it.
func TestSeriesKeepEveryRequest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		begin := rapid.Int64Range(631_152_000, 4_000_000_000).Draw(t, "begin")
		spread := rapid.SampledFrom([]int64{1, 100, 100_000, 10_000_000, 100_000_000}).Draw(t, "spread")
		var s series
		var want bucket
		byMinute := map[int64]int64{}
		for _, at := range rapid.SliceOfN(rapid.Int64Range(0, spread), 1, 50).Draw(t, "times") {
			b := s.at(begin + at)
			if rapid.Bool().Draw(t, "admitted") {
				b.admitted++
				want.admitted++
			} else {
				b.refused++
				want.refused++
				byMinute[(begin+at)/60]++
			}
		}
		columns := rapid.IntRange(1, 300).Draw(t, "columns")
		f := s.frame(columns)
		var got bucket
		for _, b := range s.in(f) {
			got.admitted, got.refused = got.admitted+b.admitted, got.refused+b.refused
		}
		if got != want || len(s.buckets) > maxBuckets || f.columns > columns {
			t.Fatalf("%+v of %+v in %d buckets and %d of %d columns", got, want, len(s.buckets), f.columns, columns)
		}
		if second, width, refused := s.worst(); width == 60 {
			for minute, n := range byMinute {
				if n > refused || minute*60 == second && n != refused {
					t.Fatalf("minute %d has %d refusals, the worst is said to be %d with %d", minute, n, second/60, refused)
				}
			}
		}
	})
}

func TestTopKeysAreThoseWithTheMostRequests(t *testing.T) {
	k := keyCounts{}
	for i := range 100 {
		id := fmt.Sprint("id", i)
		k.note(id, fmt.Sprintf("key %03d", i)).n = int64(i % 50)
		if k.find(id) == nil || k.find("") != nil {
			t.Fatal("keys are not found by their IDs")
		}
	}
	var got []string
	for _, c := range topKeys(4, k.results()) {
		got = append(got, fmt.Sprintf("%s: %d", c.Key, c.Refused))
	}
	if want := "key 049: 49, key 099: 49, key 048: 48, key 098: 48"; strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %s", got, want)
	}
}

func TestTextsOfKeysAreBoundedAndValid(t *testing.T) {
	k := keyCounts{}
	for _, text := range []string{strings.Repeat("é", 100), "a" + strings.Repeat("é", 100), strings.Repeat("\x80", 1000), "\xff"} {
		if got := k.note("", text).text; len(got) > 3*maxKeyText+3 || !utf8.ValidString(got) {
			t.Errorf("%.20q is kept as %q", text, got)
		}
	}
	if a, b := k.note("", "x"), k.note("", "x"); a != b {
		t.Error("a text without an ID is not counted as one key")
	}
}

func TestBarsShowWhateverThereIs(t *testing.T) {
	for want, b := range map[string]bucket{
		"        ": {},
		"########": {admitted: 1000},
		"xxxxxxxx": {refused: 1000},
		"#       ": {admitted: 1},
		"#xxxxxxx": {admitted: 1, refused: 999},
		"#######x": {admitted: 999, refused: 1},
		"##xx    ": {admitted: 250, refused: 250},
		"####xxxx": {admitted: 500, refused: 500},
		"#x      ": {admitted: 1, refused: 1},
	} {
		if got := bar(b, 1000); got != want {
			t.Errorf("%+v is drawn %q, want %q", b, got, want)
		}
	}
}
