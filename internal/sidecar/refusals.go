package sidecar

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

// refusalEvery is the shortest time between two lines of the log about the refusals of
// one limit. A limit that refuses all day is a line in ten seconds, whatever the
// flood; one that refuses now and then is told of each time.
const refusalEvery = 10 * time.Second

// refusalLog tells of refusals: of each limit's first one, and then of one in
// refusalEvery, with how many there were. It says nothing of the requests. It is safe
// for concurrent use.
type refusalLog struct {
	log      *slog.Logger
	revision func() string

	mu     sync.Mutex
	limits map[limitName]*refusalsOf
}

// refusalsOf is what is known of one limit's refusals.
type refusalsOf struct {
	told   time.Time
	untold int64
}

// maxRefusers bounds the limits that are remembered. Names come and go with policies;
// when all have been forgotten, each is told of once more.
const maxRefusers = 1 << 14

func newRefusalLog(log *slog.Logger, l *tallyman.Limiter) *refusalLog {
	return &refusalLog{log: log, revision: l.Revision, limits: map[limitName]*refusalsOf{}}
}

// note is told of a refusal.
func (r *refusalLog) note(way string, d tallyman.Decision, now time.Time) {
	if !r.log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	if untold, due := r.due(limitName{d.Policy, d.Limit}, now); due {
		r.log.Info("Refused a request", "policy", d.Policy, "limit", d.Limit, "reason", d.Reason, "way", way,
			"revision", r.revision(), "notLogged", untold)
	}
}

// due says whether it is time to tell of a limit's refusal, and how many were not told
// of since the last one that was.
func (r *refusalLog) due(limit limitName, now time.Time) (untold int64, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of, known := r.limits[limit]
	switch {
	case !known && len(r.limits) >= maxRefusers:
		clear(r.limits)
		fallthrough
	case !known:
		of = &refusalsOf{}
		r.limits[limit] = of
	case now.Sub(of.told) < refusalEvery:
		of.untold++
		return 0, false
	}
	untold, of.told, of.untold = of.untold, now, 0
	return untold, true
}
