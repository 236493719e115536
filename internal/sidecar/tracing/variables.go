package tracing

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
)

// variable is one of the environment, as OpenTelemetry reads it.
func variable(name string) string { return strings.TrimSpace(os.Getenv(name)) }

// checkVariables refuses what OpenTelemetry would pass over, or fail at. Errors leave
// out values, which can be secret, and OpenTelemetry would log them.
func checkVariables() error {
	for _, v := range []struct {
		check func(string) error
		names []string
	}{
		{checkEndpoint, []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"}},
		{checkHeaders, []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"}},
		{checkNumber, []string{
			"OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_EXPORT_TIMEOUT",
		}},
	} {
		for _, name := range v.names {
			value := variable(name)
			if value == "" {
				continue
			}
			if err := v.check(value); err != nil {
				return fmt.Errorf("%s %w", name, err)
			}
		}
	}
	return nil
}

func checkEndpoint(value string) error {
	u, err := url.Parse(value)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return errors.New("must be a URL such as http://collector:4318")
	}
	return nil
}

func checkHeaders(value string) error {
	for pair := range strings.SplitSeq(value, ",") {
		name, value, found := strings.Cut(pair, "=")
		if _, err := url.PathUnescape(value); !found || err != nil || !isToken(strings.TrimSpace(name)) {
			return errors.New("must be name=value pairs with commas between, the values escaped as in a URL, such as authorization=Bearer%20abc")
		}
	}
	return nil
}

// isToken says whether a text is a token of HTTP, as names of headers are.
func isToken(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(c rune) bool {
		return c <= ' ' || c > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	})
}

// maxNumber bounds sizes, for which memory is taken at once, and times in ms.
const maxNumber = 1 << 20

func checkNumber(value string) error {
	if n, err := strconv.Atoi(value); err != nil || n < 1 || n > maxNumber {
		return fmt.Errorf("must be a number from 1 to %d", maxNumber)
	}
	return nil
}
