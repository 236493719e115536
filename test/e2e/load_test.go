//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"encoding/json"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// answers is what the client in a pod got: see app.
type answers struct {
	Statuses   map[string]int `json:"statuses"`
	Pods       map[string]int `json:"pods"`
	Errors     int            `json:"errors"`
	Error      string         `json:"error"`
	RetryAfter string         `json:"retryAfter"`
}

// load has the client of a namespace send requests to its orders.
func load(ctx context.Context, namespace string, args ...string) answers {
	GinkgoHelper()
	all := append([]string{"exec", "--namespace", namespace, "client", "--", "/program", "load"}, args...)
	out := kubectl(ctx, append(all, "http://orders/")...)
	var a answers
	Expect(json.Unmarshal([]byte(out), &a)).To(Succeed(), "of %s", out)
	return a
}

// loadDuring has the client send requests for as long as something lasts.
func loadDuring(ctx context.Context, namespace string, do func(), args ...string) answers {
	GinkgoHelper()
	done := make(chan struct{})
	go func() {
		defer GinkgoRecover()
		defer close(done)
		do()
	}()
	all := answers{Statuses: map[string]int{}, Pods: map[string]int{}}
	for {
		select {
		case <-done:
			return all
		default:
			all.add(load(ctx, namespace, append([]string{"-n", "100", "-c", "4"}, args...)...))
		}
	}
}

func (a *answers) add(more answers) {
	for status, n := range more.Statuses {
		a.Statuses[status] += n
	}
	for pod, n := range more.Pods {
		a.Pods[pod] += n
	}
	a.Errors += more.Errors
	a.Error = cmp.Or(a.Error, more.Error)
	a.RetryAfter = cmp.Or(a.RetryAfter, more.RetryAfter)
}
