package inject

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// tuning is what a pod's author says about its sidecar.
type tuning struct {
	port        string // name of the app's port; empty for the one that is meant
	logLevel    string
	trustedHops int
	resources   corev1.ResourceRequirements
}

const (
	maxTrustedHops = 16
	// maxQuantity bounds the text of a quantity, in bytes.
	maxQuantity = 32
)

var logLevels = []string{"debug", "info", "warn", "error"}

// minMemory is the lowest limit: below, the sidecar would be killed again and
// again before it has read the policies.
var minMemory = resource.MustParse("32Mi")

// defaultTuning has no limit of CPU: throttled, each request would wait. The limit of
// memory is for some 4000 requests in progress at a time. docs/injection.md has the
// measurements.
func defaultTuning() tuning {
	return tuning{
		logLevel: "info",
		resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("10m"),
				corev1.ResourceMemory: resource.MustParse("32Mi"),
			},
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
		},
	}
}

// parseTuning reads a pod's annotations. It warns of ours that it does not know.
func parseTuning(annotations map[string]string) (tuning, []string, error) {
	t := defaultTuning()
	var warnings []string
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if !strings.HasPrefix(key, domain) || key == ReasonAnnotation {
			continue
		}
		set, known := setters[key]
		if !known {
			warnings = append(warnings, fmt.Sprintf("annotation %s is not known, and means nothing; there are: %s",
				key, strings.Join(slices.Sorted(maps.Keys(setters)), ", ")))
			continue
		}
		if err := set(&t, annotations[key]); err != nil {
			return t, nil, fmt.Errorf("annotation %s: %w", key, err)
		}
	}
	return t, warnings, nil
}

var setters = map[string]func(*tuning, string) error{
	PortAnnotation: func(t *tuning, value string) error {
		if len(validation.IsValidPortName(value)) > 0 {
			return fmt.Errorf("must be the name of one of the pod's ports, such as http, not %.80q", value)
		}
		t.port = value
		return nil
	},
	LogLevelAnnotation: func(t *tuning, value string) error {
		if !slices.Contains(logLevels, value) {
			return fmt.Errorf("must be one of %s, not %.80q", strings.Join(logLevels, ", "), value)
		}
		t.logLevel = value
		return nil
	},
	TrustedHopsAnnotation: func(t *tuning, value string) (err error) {
		if t.trustedHops, err = strconv.Atoi(value); err != nil || t.trustedHops < 0 || t.trustedHops > maxTrustedHops {
			return fmt.Errorf("must be a number from 0 to %d, of the proxies in front that append to X-Forwarded-For, not %.80q",
				maxTrustedHops, value)
		}
		return nil
	},
	CPUAnnotation: func(t *tuning, value string) error {
		return t.setResource(corev1.ResourceCPU, value)
	},
	MemoryAnnotation: func(t *tuning, value string) error {
		if err := t.setResource(corev1.ResourceMemory, value); err != nil {
			return err
		}
		if limit := t.resources.Limits[corev1.ResourceMemory]; limit.Cmp(minMemory) < 0 {
			return fmt.Errorf("the limit must be %s or more, or the sidecar is killed at once, not %.80q", &minMemory, value)
		}
		return nil
	},
}

// setResource reads request/limit. Without a limit, CPU has none and memory's is
// the request: memory that is promised to nobody else can as well be used.
func (t *tuning) setResource(name corev1.ResourceName, value string) error {
	requestText, limitText, limited := strings.Cut(value, "/")
	if !limited {
		limitText = requestText
	}
	request, err := parseQuantity(requestText)
	if err != nil {
		return err
	}
	limit, err := parseQuantity(limitText)
	if err != nil {
		return err
	}
	if limit.Cmp(request) < 0 {
		return fmt.Errorf("the limit must not be below the request: write request/limit, such as 100m/500m or 64Mi/128Mi, not %.80q", value)
	}
	t.resources.Requests[name] = request
	if limited || name == corev1.ResourceMemory {
		t.resources.Limits[name] = limit
	}
	return nil
}

func parseQuantity(text string) (resource.Quantity, error) {
	quantity, err := resource.ParseQuantity(text)
	if err != nil || len(text) > maxQuantity || quantity.Sign() <= 0 {
		return quantity, fmt.Errorf("must be a request or request/limit above 0, such as 100m, 100m/500m or 64Mi/128Mi, not %.80q", text)
	}
	return quantity, nil
}
