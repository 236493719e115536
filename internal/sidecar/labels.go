package sidecar

import (
	"fmt"
	"strconv"
	"strings"
)

// parseLabels reads a=b,c=d.
func parseLabels(text string) (map[string]string, error) {
	labels := map[string]string{}
	if text == "" {
		return labels, nil
	}
	for pair := range strings.SplitSeq(text, ",") {
		name, value, found := strings.Cut(strings.TrimSpace(pair), "=")
		if !found || name == "" {
			return nil, fmt.Errorf("--pod-labels must be name=value pairs with commas between, such as app=orders,tier=web, not %q", pair)
		}
		labels[name] = value
	}
	return labels, nil
}

// parseDownwardLabels reads the file that the downward API writes: a line
// name="value" for each label, the value quoted as Go does.
func parseDownwardLabels(text string) (map[string]string, error) {
	labels := map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		name, quoted, _ := strings.Cut(line, "=")
		value, err := strconv.Unquote(quoted)
		if err != nil || name == "" {
			return nil, fmt.Errorf("--pod-labels-file must have lines such as app=\"orders\", not %.80q", line)
		}
		labels[name] = value
	}
	return labels, nil
}
