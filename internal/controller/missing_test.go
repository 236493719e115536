package controller

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/compile"
)

func missing(uids ...string) []compile.Missing {
	all := make([]compile.Missing, len(uids))
	for i, uid := range uids {
		all[i].Pod.UID = uid
	}
	return all
}

func TestAPodIsNewsOnceForAsLongAsItIsMissing(t *testing.T) {
	var told told
	for i, step := range []struct {
		ns            Namespace
		missing, news []string
	}{
		{"shop", []string{"a", "b"}, []string{"a", "b"}},
		{"shop", []string{"b", "a"}, nil},
		{"bank", []string{"c"}, []string{"c"}},
		{"shop", []string{"a", "d"}, []string{"d"}},
		{"shop", []string{"a", "b", "d"}, []string{"b"}},
		{"shop", nil, nil},
		{"bank", nil, nil},
	} {
		var got []string
		for _, m := range told.news(step.ns, missing(step.missing...)) {
			got = append(got, m.Pod.UID)
		}
		if !slices.Equal(got, step.news) {
			t.Errorf("step %d: news are %q, not %q", i, got, step.news)
		}
	}
	if len(told.uids) > 0 {
		t.Errorf("pods that are gone are remembered: %v", told.uids)
	}
}

func TestManyPodsAreToldBitByBit(t *testing.T) {
	var told told
	var uids []string
	for i := range 2*maxNews + 1 {
		uids = append(uids, fmt.Sprint(i))
	}
	all := map[string]bool{}
	for _, want := range []int{maxNews, maxNews, 1, 0} {
		news := told.news("shop", missing(uids...))
		if len(news) != want {
			t.Errorf("%d are told at a time, not %d", len(news), want)
		}
		for _, m := range news {
			all[m.Pod.UID] = true
		}
	}
	if len(all) != len(uids) {
		t.Errorf("%d pods were told of, there are %d", len(all), len(uids))
	}
}
