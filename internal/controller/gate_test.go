package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
)

// hang is a store that never answers.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return fmt.Errorf("publish: %w", ctx.Err())
}

func answer(context.Context) error { return nil }

// waited is how long a try takes.
func waited(ctx context.Context, g *gate, attempt func(context.Context) error) (time.Duration, error) {
	began := time.Now()
	err := g.try(ctx, attempt)
	return time.Since(began), err
}

func TestOneAttemptAtATimeIsMadeAtAStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		if took, err := waited(t.Context(), &g, hang); took != storeTimeout || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("the first attempt took %s and gave %v", took, err)
		}
		if took, err := waited(t.Context(), &g, answer); took != 0 || err == nil {
			t.Fatalf("an attempt through the closed gate took %s and gave %v", took, err)
		}
		time.Sleep(closedFor)
		var attempts sync.WaitGroup
		attempts.Go(func() { _ = g.try(t.Context(), hang) })
		synctest.Wait()
		if took, err := waited(t.Context(), &g, answer); took != 0 || err == nil {
			t.Fatalf("a second attempt beside one that hangs took %s and gave %v", took, err)
		}
		attempts.Wait()
	})
}

func TestTheGateOpensWhenTheStoreAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		_ = g.try(t.Context(), hang)
		time.Sleep(closedFor)
		for range 2 {
			if took, err := waited(t.Context(), &g, answer); took != 0 || err != nil {
				t.Fatalf("an attempt at a store that answers took %s and gave %v", took, err)
			}
		}
	})
}

func TestAnAttemptThatIsShutDownSaysNothingAboutTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g gate
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_ = g.try(ctx, hang)
		if err := g.try(t.Context(), answer); err != nil {
			t.Fatalf("the gate closed: %v", err)
		}
	})
}

func TestTheLogHasTransitionsAndNotEveryFailure(t *testing.T) {
	var lines []string
	log := funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{})
	ctx := logr.NewContext(t.Context(), log)

	var g gate
	refused := errors.New("refused")
	for _, result := range []error{nil, refused, refused, refused, nil, nil, refused} {
		_ = g.try(ctx, func(context.Context) error { return result })
	}
	want := []string{"The store failed", "The store answers again", "The store failed"}
	if len(lines) != len(want) {
		t.Fatalf("the log has %q", lines)
	}
	for i, line := range lines {
		if !strings.Contains(line, want[i]) {
			t.Errorf("line %d is %s and not %q", i, line, want[i])
		}
	}
}
