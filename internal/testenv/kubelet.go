package testenv

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Kubelet stands in for a node: the API server passes port-forwards to its pods on to
// it. It runs no pods. It is safe for concurrent use.
type Kubelet struct {
	// Node is the name for pods' spec.nodeName.
	Node string

	admin  client.Client
	server *httptest.Server
	mu     sync.Mutex
	ports  map[string]string
}

// StartKubelet makes a node of a name.
func (c *ControlPlane) StartKubelet(ctx context.Context, name string) (*Kubelet, error) {
	admin, err := client.New(c.Config, client.Options{})
	if err != nil {
		return nil, err
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := admin.Create(ctx, node); err != nil {
		return nil, err
	}
	k := &Kubelet{Node: name, admin: admin, ports: map[string]string{}}
	k.server = httptest.NewTLSServer(http.HandlerFunc(k.portForward))
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(k.server.Listener.Addr().(*net.TCPAddr).Port)
	return k, admin.Status().Update(ctx, node)
}

// Stop ends the connections. The node stays.
func (k *Kubelet) Stop() {
	k.server.CloseClientConnections()
	k.server.Close()
}

// Started says in the status of a pod that it runs, with all its native sidecars.
func (k *Kubelet) Started(ctx context.Context, namespace, name string) error {
	var pod corev1.Pod
	if err := k.admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &pod); err != nil {
		return err
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.InitContainerStatuses = nil
	for _, c := range pod.Spec.InitContainers {
		pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, Started: new(true), Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		})
	}
	return k.admin.Status().Update(ctx, &pod)
}

// Forward has a port of a pod lead to an address of this machine, such as
// 127.0.0.1:8080.
func (k *Kubelet) Forward(namespace, pod string, port int32, address string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ports[fmt.Sprintf("%s/%s:%d", namespace, pod, port)] = address
}

// portForward serves POST /portForward/NAMESPACE/POD by SPDY.
func (k *Kubelet) portForward(w http.ResponseWriter, r *http.Request) {
	pod, found := strings.CutPrefix(r.URL.Path, "/portForward/")
	if !found {
		http.NotFound(w, r)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{"portforward.k8s.io"}); err != nil {
		return // it has answered
	}
	streams := make(chan httpstream.Stream)
	connection := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		go func() { streams <- s }()
		return nil
	})
	if connection == nil {
		return
	}
	defer connection.Close()
	errs := map[string]httpstream.Stream{} // by request, until its data comes
	data := map[string]httpstream.Stream{}
	for {
		select {
		case <-connection.CloseChan():
			return
		case s := <-streams:
			id := s.Headers().Get(corev1.PortForwardRequestIDHeader)
			if s.Headers().Get(corev1.StreamType) == corev1.StreamTypeError {
				errs[id] = s
			} else {
				data[id] = s
			}
			if errs[id] != nil && data[id] != nil {
				go k.copy(pod, data[id], errs[id])
				delete(errs, id)
				delete(data, id)
			}
		}
	}
}

// copy connects a stream with a pod's port.
func (k *Kubelet) copy(pod string, data, errs httpstream.Stream) {
	defer errs.Close()
	defer data.Close()
	port, _ := strconv.Atoi(data.Headers().Get(corev1.PortHeader))
	k.mu.Lock()
	address := k.ports[fmt.Sprintf("%s:%d", pod, port)]
	k.mu.Unlock()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		fmt.Fprintf(errs, "an error occurred forwarding %d -> %d: connection refused", port, port)
		return
	}
	defer conn.Close()
	go func() {
		_, _ = io.Copy(conn, data)
		_ = conn.Close()
	}()
	_, _ = io.Copy(data, conn)
}
