package compile

import "slices"

// Missing is a pod that is to have a sidecar and has none, so that policies which
// select it are not enforced there.
type Missing struct {
	Pod Pod
	// Policies that select it, in the order of their names.
	Policies []string
}

// WithoutSidecar are the pods that were to have a sidecar, have none, and do not
// enforce by the library either.
func WithoutSidecar(v Verdicts, f Facts) []Missing {
	definitions := v.Definitions()
	enforces := make(map[string]bool, len(f.Enforcers))
	for _, e := range f.Enforcers {
		enforces[e.Pod] = true
	}
	var missing []Missing
	for _, pod := range f.Pods {
		if !pod.Asked || !pod.WithoutSidecar || enforces[pod.Name] {
			continue
		}
		m := Missing{Pod: pod}
		for i := range definitions {
			if definitions[i].Selects(pod.Labels) {
				m.Policies = append(m.Policies, definitions[i].Name)
			}
		}
		if len(m.Policies) > 0 {
			slices.Sort(m.Policies) // a cache lists them in any order
			missing = append(missing, m)
		}
	}
	return missing
}

// Message says why there is none and what to do.
func (m Missing) Message() string {
	return "The pod has no Tallyman sidecar: " + cut(m.Pod.Reason, maxWhy) +
		"; requests to it are not limited by: " + list(m.Policies, ", ", maxPodNames)
}
