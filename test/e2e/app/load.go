package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// answers is what a load got.
type answers struct {
	// Statuses counts answers by status code.
	Statuses map[string]int `json:"statuses"`
	// Pods counts those with status 200 by who answered.
	Pods map[string]int `json:"pods"`
	// Errors counts requests without an answer, and Error is one of them.
	Errors int    `json:"errors"`
	Error  string `json:"error,omitempty"`
	// RetryAfter is that of a refusal.
	RetryAfter string `json:"retryAfter,omitempty"`
}

// load sends requests and prints what came of them.
func load(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	n := flags.Int("n", 1, "`number` of requests")
	callers := flags.Int("c", 8, "`number` of callers")
	header := flags.String("header", "", "a `header`, as Name: value")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("load needs one URL")
	}
	l := &loader{url: flags.Arg(0), left: *n, answers: answers{Statuses: map[string]int{}, Pods: map[string]int{}}}
	if name, value, found := strings.Cut(*header, ":"); found {
		l.name, l.value = name, strings.TrimSpace(value)
	}
	// Every request has a connection of its own, so that a Service deals them out.
	l.client = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var group sync.WaitGroup
	for range *callers {
		group.Go(func() { l.run(ctx) })
	}
	group.Wait()
	return json.NewEncoder(os.Stdout).Encode(l.answers)
}

type loader struct {
	client           *http.Client
	url, name, value string

	mu   sync.Mutex
	left int
	answers
}

func (l *loader) run(ctx context.Context) {
	for ctx.Err() == nil && l.next() {
		l.note(l.ask())
	}
}

func (l *loader) next() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left--
	return l.left >= 0
}

// ask sends a request to its end, also when the load is over meanwhile.
func (l *loader) ask() (*http.Response, string, error) {
	r, err := http.NewRequest(http.MethodGet, l.url, nil)
	if err != nil {
		return nil, "", err
	}
	if l.name != "" {
		r.Header.Set(l.name, l.value)
	}
	response, err := l.client.Do(r)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	return response, strings.TrimSpace(string(body)), err
}

func (l *loader) note(r *http.Response, body string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.Errors++
		l.Error = err.Error()
		return
	}
	l.Statuses[strconv.Itoa(r.StatusCode)]++
	switch r.StatusCode {
	case http.StatusOK:
		l.Pods[body]++
	case http.StatusTooManyRequests:
		l.RetryAfter = r.Header.Get("Retry-After")
	}
}
