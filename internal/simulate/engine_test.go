package simulate_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-dev/tallyman/internal/golden"
	"github.com/tallyman-dev/tallyman/internal/limiter"
	"github.com/tallyman-dev/tallyman/internal/policyfile"
	"github.com/tallyman-dev/tallyman/internal/simulate"
	"github.com/tallyman-dev/tallyman/internal/testredis"
)

// start is the default of the command.
var start = time.Date(2024, time.January, 1, 0, 0, 0, 0, time.UTC)

// stores are what a simulation can count in, each for one simulation.
var stores = map[string]func(testing.TB, *simulate.Clock) limiter.Store{
	"Memory": func(_ testing.TB, c *simulate.Clock) limiter.Store { return limiter.NewSimulatedMemory(c.Now) },
	"Redis": func(t testing.TB, c *simulate.Clock) limiter.Store {
		return limiter.NewRedis(testredis.Shared(t).Client(t), limiter.RedisOptions{Now: c.Micros})
	},
}

// simulation runs a trace on a store and returns its output.
func simulation(t testing.TB, policies, trace []byte, open func(testing.TB, *simulate.Clock) limiter.Store, prefix string) string {
	t.Helper()
	var p simulate.Policies
	if err := policyfile.Parse("policy.yaml", policies, "default", p.Add); err != nil {
		t.Fatal(err)
	}
	clock := simulate.NewClock(start)
	engine := simulate.NewEngine(&p, clock, open(t, clock), prefix)
	var out bytes.Buffer
	summary := simulate.NewSummary(engine.Limits())
	if err := simulate.Run(t.Context(), simulate.NewTrace("trace", bytes.NewReader(trace)), engine, &out, summary); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestGoldenFiles(t *testing.T) {
	inputs, err := filepath.Glob("testdata/*.policy.yaml")
	if err != nil || len(inputs) == 0 {
		t.Fatalf("find testdata: %d files, %v", len(inputs), err)
	}
	for _, path := range inputs {
		name := strings.TrimSuffix(path, ".policy.yaml")
		for store, open := range stores {
			t.Run(filepath.Base(name)+"/"+store, func(t *testing.T) {
				got := simulation(t, read(t, path), read(t, name+".trace.jsonl"), open, testredis.Prefix(t))
				golden.Compare(t, name+".out.jsonl", got)
			})
		}
	}
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
