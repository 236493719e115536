package testredis

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

//go:embed testdata/skew.c
var skewSource []byte

// Skew restarts the server with a wall clock that is off by a whole number of
// seconds. Its data is lost, but for what a replica gets from its master. It
// needs a C compiler, as the race detector does.
func (s *Server) Skew(t testing.TB, off time.Duration) {
	t.Helper()
	dir := t.TempDir()
	source, library := filepath.Join(dir, "skew.c"), filepath.Join(dir, "skew.so")
	if err := os.WriteFile(source, skewSource, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
		t.Fatalf("compile %s, for which this test needs a C compiler: %v\n%s", source, err, out)
	}
	s.env = []string{"LD_PRELOAD=" + library, "SKEW_SECONDS=" + strconv.Itoa(int(off/time.Second))}
	s.Restart(t)
}
