package sidecar

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/tallyman-dev/tallyman/internal/respond"
	"github.com/tallyman-dev/tallyman/pkg/tallyman"
)

const (
	// maxToken bounds tokens, in bytes.
	maxToken = 200
	// maxReservation is the longest time that an estimate can be settled.
	maxReservation = 24 * time.Hour
)

// reserveRequest describes a request whose cost is known late.
type reserveRequest struct {
	checkRequest
	// Token is the caller's name for the reservation.
	Token string `json:"token"`
	// TTLMs is how long it can be settled; ten minutes if 0.
	TTLMs int64 `json:"ttlMs"`
}

func (q *reserveRequest) request() (tallyman.Request, error) {
	if q.TTLMs < 0 || q.TTLMs > maxReservation.Milliseconds() {
		return tallyman.Request{}, fmt.Errorf("ttlMs must be 1 to %d (a day), or be left out", maxReservation.Milliseconds())
	}
	return requestOf(&q.checkRequest, q.Token)
}

// settleRequest describes a request that was reserved, in the same words.
type settleRequest struct {
	checkRequest
	Token string `json:"token"`
	// Cost is what the request has cost, in units.
	Cost *int64 `json:"cost"`
}

func (q *settleRequest) request() (tallyman.Request, error) {
	if q.Cost == nil || *q.Cost < 0 {
		return tallyman.Request{}, errors.New("cost must be there: the units that the request has cost, 0 or more")
	}
	return requestOf(&q.checkRequest, q.Token)
}

// refundRequest describes a request that was admitted and did not happen.
type refundRequest struct {
	checkRequest
	// Token makes a refund that is asked for again happen once.
	Token string `json:"token"`
}

func (q *refundRequest) request() (tallyman.Request, error) {
	return requestOf(&q.checkRequest, q.Token)
}

func requestOf(c *checkRequest, token string) (tallyman.Request, error) {
	if token == "" || len(token) > maxToken {
		return tallyman.Request{}, fmt.Errorf("token must be there and have at most %d bytes: it tells this request from all others", maxToken)
	}
	return c.request()
}

func reserveHandler(d *door) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q reserveRequest
		if request, ok := read(w, r, &q); ok {
			decision := d.Reserve(r.Context(), request, q.Token, time.Duration(q.TTLMs)*time.Millisecond)
			respond.JSON(w, describe(decision))
		}
	}
}

func settleHandler(l *tallyman.Limiter) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q settleRequest
		if request, ok := read(w, r, &q); ok {
			writeDone(w, l.Settle(r.Context(), request, q.Token, *q.Cost))
		}
	}
}

func refundHandler(l *tallyman.Limiter) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q refundRequest
		if request, ok := read(w, r, &q); ok {
			writeDone(w, l.Refund(r.Context(), request, q.Token))
		}
	}
}

// writeDone answers for what has no more to tell than that it was done. Errors of
// the store are not told: they can name it.
func writeDone(w http.ResponseWriter, err error) {
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, tallyman.ErrNotReserved):
		respond.Problem(w, http.StatusNotFound,
			"there is no such reservation: it was refused, has expired, was settled before, or was made for a request of other limits")
	default:
		respond.Problem(w, http.StatusServiceUnavailable,
			"the store did not answer in time, and may or may not have counted: ask again with the same token")
	}
}
