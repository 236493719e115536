package reach

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/tallyman-dev/tallyman/internal/operator"
)

// maxAnswer bounds an answer, in bytes: a thousand keys of each of a thousand limits.
const maxAnswer = 64 << 20

// maxDetail bounds what is quoted of an error's answer, in bytes.
const maxDetail = 1 << 10

// Client asks one operator API. It is safe for concurrent use.
type Client struct {
	base   string // without a path
	http   *http.Client
	tunnel *tunnel // nil without one
}

// Refusal is an answer that says why something was not done. Other errors of a Client
// mean that there was no answer.
type Refusal struct {
	Status int // of HTTP
	Detail string
}

// Error implements error.
func (r *Refusal) Error() string { return r.Detail }

// Unreached is why a question did not get to the API, so that it can be asked elsewhere.
type Unreached struct{ Cause error }

// Error implements error.
func (u *Unreached) Error() string { return u.Cause.Error() }

// Unwrap is for errors.Is and errors.As.
func (u *Unreached) Unwrap() error { return u.Cause }

// IsForbidden says whether a question did not get to the API since the user may not
// forward ports to the pod. There is only a text to tell it by.
func IsForbidden(err error) bool {
	return errors.As(err, new(*Unreached)) && strings.Contains(err.Error(), " is forbidden: ")
}

// NewClient is for an API at a URL such as http://127.0.0.1:12082.
func NewClient(base string) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.User != nil || u.RawQuery != "" {
		return nil, fmt.Errorf("%.100q is no URL of a sidecar's operator API: write its --operator-listen, such as http://127.0.0.1:12082", base)
	}
	return &Client{base: "http://" + u.Host, http: &http.Client{Transport: &http.Transport{}}}, nil
}

// Close ends the connections.
func (c *Client) Close() {
	c.http.CloseIdleConnections()
	if c.tunnel != nil {
		c.tunnel.close()
	}
}

// Explain asks what would become of a request.
func (c *Client) Explain(ctx context.Context, r operator.Request) (e operator.Explanation, err error) {
	err = c.ask(ctx, http.MethodPost, operator.PathExplain, r, &e)
	return e, ours(err, e.Limits != nil)
}

// Top asks for the counts of keys: their hashes, or to reveal them the values.
func (c *Client) Top(ctx context.Context, reveal bool) (t operator.Top, err error) {
	path := operator.PathTop
	if reveal {
		path += "?reveal=true"
	}
	err = c.ask(ctx, http.MethodGet, path, nil, &t)
	return t, ours(err, t.Limits != nil)
}

// Reset empties a counter.
func (c *Client) Reset(ctx context.Context, change operator.Change) (d operator.Changed, err error) {
	err = c.ask(ctx, http.MethodPost, operator.PathReset, change, &d)
	return d, ours(err, d.RedisKey != "")
}

// Refund gives units back.
func (c *Client) Refund(ctx context.Context, change operator.Change) (d operator.Changed, err error) {
	err = c.ask(ctx, http.MethodPost, operator.PathRefund, change, &d)
	return d, ours(err, d.RedisKey != "")
}

// Store asks a manager about the store.
func (c *Client) Store(ctx context.Context) (h operator.StoreHealth, err error) {
	err = c.ask(ctx, http.MethodGet, operator.PathStore, nil, &h)
	return h, ours(err, h.Nodes != nil || h.Error != "")
}

// ours takes no other server's answer for one of the API, such as {}: what is always
// there has to be there.
func ours(err error, isThere bool) error {
	if err == nil && !isThere {
		return errors.New("the answer is not that of an operator API: is it another server's port?")
	}
	return err
}

func (c *Client) ask(ctx context.Context, method, path string, question, answer any) error {
	var body io.Reader
	if question != nil {
		data, err := json.Marshal(question)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return err
	}
	request.Header.Set(operator.Header, "kubectl")
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return c.unreached(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return c.unreached(err)
	case response.StatusCode != http.StatusOK:
		return refusal(response, data)
	case len(data) > maxAnswer:
		return fmt.Errorf("the answer to %s is longer than %d MiB", path, maxAnswer>>20)
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("the answer to %s is not understood: %w", path, err)
	}
	return nil
}

// unreached is why there was no answer, without the URL, which says nothing to people.
func (c *Client) unreached(err error) error {
	if c.tunnel != nil {
		if cause := c.tunnel.failed(); cause != nil {
			return &Unreached{cause}
		}
	}
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		return &Unreached{dial}
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}

// refusal reads a problem document, or what is there in its place.
func refusal(response *http.Response, body []byte) error {
	var problem struct{ Title, Detail string }
	if kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); kind == "application/problem+json" {
		_ = json.Unmarshal(body, &problem) // what is not one says nothing
	}
	said := cmp.Or(problem.Detail, problem.Title)
	detail := said[:min(len(said), maxDetail)]
	if detail == "" {
		detail = fmt.Sprintf("%s: %s", response.Status, bytes.TrimSpace(body[:min(len(body), maxDetail)]))
	}
	return &Refusal{Status: response.StatusCode, Detail: detail}
}
