package inject

// Container is the name of the sidecar's container. A pod that has a container
// of that name already is left alone.
const Container = "tallyman"

// Labels. They are labels, and not annotations, so that the API server asks the
// webhook about no other pods.
const (
	// NamespaceLabel of a namespace opts its pods in ("enabled"), or keeps all
	// of them out ("disabled").
	NamespaceLabel = "tallyman.dev/injection"
	// PodLabel of a pod opts it in ("true") or out ("false").
	PodLabel = "tallyman.dev/inject"
	// VersionLabel of a pod is the version of the sidecar that was put into it.
	VersionLabel = "tallyman.dev/sidecar"
)

// Annotations of a pod by which its author tunes the sidecar.
const (
	PortAnnotation        = "tallyman.dev/port"
	CPUAnnotation         = "tallyman.dev/cpu"
	MemoryAnnotation      = "tallyman.dev/memory"
	LogLevelAnnotation    = "tallyman.dev/log-level"
	TrustedHopsAnnotation = "tallyman.dev/trusted-hops"
)

// ReasonAnnotation says why a pod was let through without a sidecar.
const ReasonAnnotation = "tallyman.dev/not-injected"

const domain = "tallyman.dev/"
