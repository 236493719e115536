package replay_test

import (
	"fmt"
	"io"
	"runtime"
	"testing"

	"github.com/tallyman-dev/tallyman/internal/accesslog"
)

// held is how many bytes a replay keeps of a log with so many lines, of so many clients
// in turn, within a quarter of an hour.
func held(t *testing.T, lines, clients int) int64 {
	t.Helper()
	out, in := io.Pipe()
	go func() {
		for i := range lines {
			fmt.Fprintf(in, `{"ts":%d,"request":{"method":"GET","uri":"/%d","remote_ip":"10.%d.%d.1"},"n":%[2]d}`+"\n",
				1_795_910_400+900*i/lines, i, i%clients/256, i%clients%256)
		}
		_ = in.Close()
	}()
	before := heap()
	reader, err := accesslog.NewReader(out, accesslog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := replayOf(t, policyOf("name: per-client, requests: 1, window: 1h, key: [{clientIP: {}}]"))
	for entries, err := range reader.Batches(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Decide(t.Context(), entries); err != nil {
			t.Fatal(err)
		}
	}
	after := heap()
	if n := reader.Stats().Requests; n != int64(lines) {
		t.Fatalf("%d of %d lines are requests", n, lines)
	}
	runtime.KeepAlive(r)
	return after - before
}

func heap() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// What is kept of a log is its keys, all of which are refused here, and not its lines.
func TestMemoryIsThatOfTheKeys(t *testing.T) {
	const clients = 5_000
	short, long := held(t, 4*clients, clients), held(t, 20*clients, clients)
	if grown := long - short; grown > 1<<20 {
		t.Errorf("5 times as many lines of the same clients take %d bytes more than %d", grown, short)
	}
	many := held(t, 20*clients, 5*clients)
	if each := (many - long) / (4 * clients); each > 1024 {
		t.Errorf("a client takes %d bytes", each)
	}
}
