package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"time"
)

func (d *demo) applyPolicy(ctx context.Context) error {
	if err := d.showKubectl(ctx, "apply", "-f", d.path("config", "samples", "orders.yaml")); err != nil {
		return err
	}
	return d.waitEnforced(ctx, 1)
}

// waitEnforced waits until every sidecar enforces this generation of the
// policy, and prints how long that took.
func (d *demo) waitEnforced(ctx context.Context, generation int64) error {
	began := time.Now()
	for _, door := range d.doors {
		what := fmt.Sprintf("%s to enforce generation %d", door.pod, generation)
		if err := waitFor(ctx, what, 30*time.Second, func(ctx context.Context) bool {
			enforced, err := d.enforcedGeneration(ctx, door)
			return err == nil && enforced == generation
		}); err != nil {
			return err
		}
	}
	say("    enforced by all three sidecars %d ms after kubectl returned", time.Since(began).Milliseconds())
	return nil
}

// enforcedGeneration asks a sidecar which generation of the policy it
// enforces; 0 means none.
func (d *demo) enforcedGeneration(ctx context.Context, at door) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.admin+"/debug/policies", nil)
	if err != nil {
		return 0, err
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var debug struct {
		Policies []struct {
			Name       string `json:"name"`
			Generation int64  `json:"generation"`
		} `json:"policies"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&debug); err != nil {
		return 0, err
	}
	for _, p := range debug.Policies {
		if p.Name == "orders" {
			return p.Generation, nil
		}
	}
	return 0, nil
}

func (d *demo) sendAlice(ctx context.Context) error {
	if err := d.awaitRoomInMinute(ctx, 5*time.Second); err != nil {
		return err
	}
	refusal, err := d.expect(ctx, 300, "alice", 100)
	if err != nil {
		return err
	}
	return printResponse(refusal)
}

// refusedCode is what kubectl tallyman explain ends with when the request would be refused.
const refusedCode = 3

func (d *demo) explainRefusal(ctx context.Context) error {
	err := d.showKubectl(ctx, "tallyman", "explain", "-n", "shop", "deployment/orders",
		"--request", "POST /v1/orders", "-H", "X-Api-Key: alice")
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == refusedCode {
		return nil
	}
	return cmp.Or(err, errors.New("it says that Alice would be admitted"))
}

// awaitRoomInMinute waits for the next minute when little is left of this one:
// windows are aligned to Redis's clock, and the counts below are exact only
// inside of one window.
func (d *demo) awaitRoomInMinute(ctx context.Context, needed time.Duration) error {
	now, err := d.redis.client.Time(ctx).Result()
	if err != nil {
		return err
	}
	left := now.Truncate(time.Minute).Add(time.Minute).Sub(now)
	if left >= needed {
		return nil
	}
	say("    (%s are left of this minute's window; waiting for the next one, so that the counts are exact)", left.Round(time.Second))
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(left + 10*time.Millisecond):
		return nil
	}
}

// printResponse shows an answer as a client sees it.
func printResponse(resp *http.Response) error {
	say("    A refusal, as Alice sees it:")
	say("      %s %s", resp.Proto, resp.Status)
	names := make([]string, 0, len(resp.Header))
	for name := range resp.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		say("      %s: %s", name, strings.Join(resp.Header.Values(name), ", "))
	}
	body, err := io.ReadAll(resp.Body)
	say("\n      %s", strings.TrimSpace(string(body)))
	return err
}

func (d *demo) sendBob(ctx context.Context) error {
	_, err := d.expect(ctx, 30, "bob", 30)
	return err
}

// showStatus waits until the status tells that all three pods enforce.
func (d *demo) showStatus(ctx context.Context) error {
	if err := d.showKubectl(ctx, "wait", "-n", "shop", "--for=condition=Enforced", "--timeout=30s", "ratelimitpolicy/orders"); err != nil {
		return err
	}
	if err := d.showKubectl(ctx, "get", "ratelimitpolicies", "-n", "shop"); err != nil {
		return err
	}
	return d.showKubectl(ctx, "tallyman", "status", "-n", "shop")
}

func (d *demo) raiseLimit(ctx context.Context) error {
	if err := d.awaitRoomInMinute(ctx, 15*time.Second); err != nil {
		return err
	}
	say("    Dave uses his 100:")
	if _, err := d.expect(ctx, 150, "dave", 100); err != nil {
		return err
	}
	if err := d.showKubectl(ctx, "patch", "ratelimitpolicy", "orders", "-n", "shop", "--type=json",
		"-p", `[{"op":"replace","path":"/spec/limits/0/requests","value":150}]`); err != nil {
		return err
	}
	if err := d.waitEnforced(ctx, 2); err != nil {
		return err
	}
	say("    Dave gets 50 more:")
	_, err := d.expect(ctx, 150, "dave", 50)
	return err
}

func (d *demo) flushRedis(ctx context.Context) error {
	if err := d.awaitRoomInMinute(ctx, 5*time.Second); err != nil {
		return err
	}
	say("    $ redis-cli FLUSHALL")
	if err := d.redis.client.FlushAll(ctx).Err(); err != nil {
		return err
	}
	if _, err := d.expect(ctx, 200, "carol", 150); err != nil {
		return err
	}
	began := time.Now()
	if err := waitFor(ctx, "the manager to restore the definitions", 60*time.Second, func(ctx context.Context) bool {
		n, err := d.redis.client.HLen(ctx, "tallyman:policies:{shop}").Result()
		return err == nil && n == 1
	}); err != nil {
		return err
	}
	say("    the definitions were back %s later", time.Since(began).Round(100*time.Millisecond))
	return nil
}

func (d *demo) deletePolicy(ctx context.Context) error {
	if err := d.showKubectl(ctx, "delete", "ratelimitpolicy", "orders", "-n", "shop"); err != nil {
		return err
	}
	if err := d.waitEnforced(ctx, 0); err != nil {
		return err
	}
	_, err := d.expect(ctx, 200, "alice", 200)
	return err
}
