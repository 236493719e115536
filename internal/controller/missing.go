package controller

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tallyman-dev/tallyman/internal/compile"
)

// tellMissing emits an event for each pod that was to have a sidecar and has none,
// once.
func (r *reconciler) tellMissing(ns Namespace, missing []compile.Missing) {
	for _, m := range r.told.news(ns, missing) {
		pod := &corev1.Pod{}
		pod.Namespace, pod.Name, pod.UID = string(ns), m.Pod.Name, types.UID(m.Pod.UID)
		r.emit(pod, corev1.EventTypeWarning, "SidecarMissing", m.Message())
	}
}

// told remembers which pods an event tells of, so that there is one and not one for
// each reconcile. It has those that are still missing a sidecar, and so no more than
// the cache has pods. The next manager tells again: it is a new process, once.
//
// It is safe for concurrent use.
type told struct {
	mu   sync.Mutex
	uids map[Namespace]map[string]bool
}

// maxNews bounds the events of a reconcile: a recorder drops what comes faster than
// it can write. The rest is told the next times, which are seconds away while a pod
// that should enforce does not.
const maxNews = 100

// news are those of the missing that it has not returned yet.
func (t *told) news(ns Namespace, missing []compile.Missing) []compile.Missing {
	t.mu.Lock()
	defer t.mu.Unlock()
	var news []compile.Missing
	uids := make(map[string]bool, len(missing))
	for _, m := range missing {
		if !t.uids[ns][m.Pod.UID] {
			if len(news) == maxNews {
				continue
			}
			news = append(news, m)
		}
		uids[m.Pod.UID] = true
	}
	if t.uids == nil {
		t.uids = map[Namespace]map[string]bool{}
	}
	t.uids[ns] = uids
	if len(uids) == 0 {
		delete(t.uids, ns)
	}
	return news
}
