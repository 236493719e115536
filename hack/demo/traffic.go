package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
)

// tally counts the answers of one door.
type tally struct{ admitted, refused, other int }

// send makes n requests of one client through random doors, a few at a time,
// and counts the answers by door. It returns a refusal as it came, if any.
func (d *demo) send(ctx context.Context, n int, apiKey string) ([]tally, *http.Response, error) {
	const concurrency = 20
	var (
		mu      sync.Mutex
		tallies = make([]tally, len(d.doors))
		refusal *http.Response
		failure error
		work    = make(chan int)
		workers sync.WaitGroup
	)
	for range concurrency {
		workers.Go(func() {
			for door := range work {
				response, err := d.request(ctx, d.doors[door].url, apiKey)
				mu.Lock()
				switch {
				case err != nil:
					failure = err
				case response.StatusCode == http.StatusOK:
					tallies[door].admitted++
				case response.StatusCode == http.StatusTooManyRequests:
					tallies[door].refused++
					refusal = response
				default:
					tallies[door].other++
				}
				mu.Unlock()
			}
		})
	}
	for range n {
		work <- rand.IntN(len(d.doors))
	}
	close(work)
	workers.Wait()
	return tallies, refusal, failure
}

// request sends one order and reads the answer whole; the returned response's
// body can still be read.
func (d *demo) request(ctx context.Context, url, apiKey string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/orders", strings.NewReader(`{"item":"book"}`))
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-Api-Key", apiKey)
	resp, err := d.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	resp.Body = io.NopCloser(strings.NewReader(string(body)))
	return resp, err
}

// expect sends requests, prints who was let through which door, and fails when
// the total is not what the policy says.
func (d *demo) expect(ctx context.Context, n int, apiKey string, wantAdmitted int) (*http.Response, error) {
	tallies, refusal, err := d.send(ctx, n, apiKey)
	if err != nil {
		return nil, fmt.Errorf("send requests of %s: %w", apiKey, err)
	}
	var total tally
	say("    %-12s %9s %9s", "door", "admitted", "refused")
	for i, t := range tallies {
		say("    %-12s %9d %9d", d.doors[i].pod, t.admitted, t.refused)
		total.admitted += t.admitted
		total.refused += t.refused
		total.other += t.other
	}
	say("    %-12s %9d %9d", "together", total.admitted, total.refused)
	if total.admitted != wantAdmitted || total.other != 0 {
		return refusal, fmt.Errorf("of %d requests of %s, %d were admitted, %d refused and %d answered otherwise; the policy says %d admitted",
			n, apiKey, total.admitted, total.refused, total.other, wantAdmitted)
	}
	return refusal, nil
}
