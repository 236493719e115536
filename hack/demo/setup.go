package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/tallyman-dev/tallyman/internal/testredis"
)

const (
	// sidecarPort is where the sidecars of shop.yaml are said to have their operator API.
	sidecarPort = 12082
	// managerPort is where the manager has its own by default.
	managerPort = 8082
)

// buildPrograms builds the manager, the sidecar and the plugin of kubectl.
func (d *demo) buildPrograms(ctx context.Context) error {
	_, err := run(ctx, "", "go", "build", "-o", d.dir+string(filepath.Separator),
		d.path("cmd", "manager"), d.path("cmd", "sidecar"), d.path("cmd", "kubectl-tallyman"))
	return err
}

// install creates the workload; the control plane came with the kind.
func (d *demo) install(ctx context.Context) error {
	if err := d.showKubectl(ctx, "apply", "-f", d.path("hack", "demo", "shop.yaml")); err != nil {
		return err
	}
	return d.showKubectl(ctx, "api-resources", "--api-group=tallyman.dev")
}

// startManager starts the operator and waits until it is ready.
func (d *demo) startManager(ctx context.Context) error {
	health, err := testredis.FreeAddress()
	if err != nil {
		return err
	}
	operator, err := testredis.FreeAddress()
	if err != nil {
		return err
	}
	manager, err := d.start("manager", filepath.Join(d.dir, "manager"),
		"--kubeconfig", d.kubeconfig, "--store", d.redis.url(),
		"--health-probe-bind-address", health, "--metrics-bind-address", "0", "--operator-bind-address", operator)
	if err != nil {
		return err
	}
	if err := d.waitReady(ctx, manager, "http://"+health); err != nil {
		return err
	}
	d.kubelet.Forward("tallyman-system", "tallyman-manager", managerPort, operator)
	return d.kubelet.Started(ctx, "tallyman-system", "tallyman-manager")
}

// startDoors starts the app, and for each pod a sidecar in front of it.
func (d *demo) startDoors(ctx context.Context) error {
	if err := d.startApp(); err != nil {
		return err
	}
	for _, pod := range []string{"orders-a", "orders-b", "orders-c"} {
		listen, err := testredis.FreeAddress()
		if err != nil {
			return err
		}
		admin, err := testredis.FreeAddress()
		if err != nil {
			return err
		}
		operator, err := testredis.FreeAddress()
		if err != nil {
			return err
		}
		sidecar, err := d.start(pod, filepath.Join(d.dir, "sidecar"),
			"--store", d.redis.url(), "--namespace", "shop", "--pod", pod, "--pod-labels", "app=orders",
			"--upstream", d.upstream, "--listen", listen, "--admin-listen", admin, "--operator-listen", operator, "--check-listen", "")
		if err != nil {
			return err
		}
		at := door{pod: pod, url: "http://" + listen, admin: "http://" + admin}
		if err := d.waitReady(ctx, sidecar, at.admin); err != nil {
			return err
		}
		d.kubelet.Forward("shop", pod, sidecarPort, operator)
		if err := d.kubelet.Started(ctx, "shop", pod); err != nil {
			return err
		}
		say("    %s listens on %s", pod, at.url)
		d.doors = append(d.doors, at)
	}
	return nil
}

// startApp serves the sample app: it accepts every order.
func (d *demo) startApp() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	app := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, "order accepted")
		}),
		ReadHeaderTimeout: 10 * time.Second,
	}
	served := make(chan error, 1)
	go func() { served <- app.Serve(listener) }()
	d.cleanup(func() error {
		err := app.Close()
		if served := <-served; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	})
	d.upstream = "http://" + listener.Addr().String()
	say("    the app listens on %s", d.upstream)
	return nil
}

// waitReady waits until a process answers /readyz.
func (d *demo) waitReady(ctx context.Context, p *process, url string) error {
	err := waitFor(ctx, p.name+" to be ready", 60*time.Second, func(ctx context.Context) bool {
		return p.ended() || d.answersOK(ctx, url+"/readyz")
	})
	if err == nil && p.ended() {
		return fmt.Errorf("%s ended: see its log", p.name)
	}
	return err
}

func (d *demo) answersOK(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
