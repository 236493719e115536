package accesslog

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"testing"
	"testing/iotest"
)

// combinedLine is the i-th line of a log, a request each second.
func combinedLine(i int) string {
	return fmt.Sprintf(`10.0.%d.%d - - [29/Nov/2026:%02d:%02d:%02d +0000] "GET /v1/orders/%d HTTP/1.1" 200 %d "https://shop.example/" "Mozilla/5.0 (X11; Linux x86_64; rv:140.0)"`,
		i/256%256, i%256, i/3600%24, i/60%60, i%60, i, i%10_000)
}

func compressed(text string) string {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return out.String()
}

// readAll returns all requests of a log, described.
func readAll(in io.Reader, o Options) (entries []string, r *Reader, err error) {
	if r, err = NewReader(in, o); err != nil {
		return nil, nil, err
	}
	for batch, err := range r.Batches(context.Background()) {
		if err != nil {
			return entries, r, err
		}
		for i := range batch {
			entries = append(entries, describe(&batch[i]))
		}
	}
	return entries, r, nil
}

func TestLinesAreReadInOrder(t *testing.T) {
	const n = 6000 // some blocks
	var log strings.Builder
	for i := range n {
		log.WriteString(combinedLine(i) + "\n")
	}
	text := log.String()
	for name, in := range map[string]io.Reader{
		"as it is":           strings.NewReader(text),
		"without a last end": strings.NewReader(strings.TrimSuffix(text, "\n")),
		"with odd ends":      strings.NewReader(strings.ReplaceAll(text, "\n", "\r\n\n")),
		"with a mark":        strings.NewReader("\uFEFF" + text),
		"with a mark inside": strings.NewReader(compressed("\uFEFF" + text)),
		"compressed":         strings.NewReader(compressed(text)),
		"in two members":     strings.NewReader(compressed(text[:100]) + compressed(text[100:])),
		"in small pieces":    iotest.HalfReader(strings.NewReader(text)),
	} {
		t.Run(name, func(t *testing.T) {
			entries, r, err := readAll(in, Options{})
			if err != nil || r.Format() != Combined {
				t.Fatalf("%v, format %v", err, r)
			}
			if s := r.Stats(); s.Lines != n || s.Requests != n || len(s.Faults) > 0 || len(entries) != n {
				t.Fatalf("%d entries, %+v", len(entries), s)
			}
			for i, got := range entries {
				if want, _ := parseOne(clf{combined: true}, combinedLine(i)); got != want {
					t.Fatalf("line %d is %s, want %s", i+1, got, want)
				}
			}
		})
	}
}

func TestLinesThatCannotBeReadAreCountedAndShown(t *testing.T) {
	good, long := combinedLine(1), strings.Repeat("x", maxLine)
	huge := strings.Repeat("y", 3*blockSize)
	lines := []string{huge, good, "", "bad", good, long, good, huge, good}
	for i := range 10_000 {
		lines = append(lines, good, fmt.Sprint("bad ", i))
	}
	entries, r, err := readAll(strings.NewReader(strings.Join(lines, "\n")), Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := r.Stats()
	if len(entries) != 10_004 || s.Requests != 10_004 || s.Lines != 20_008 {
		t.Errorf("%d entries, %d requests, %d lines", len(entries), s.Requests, s.Lines)
	}
	var shown []int64
	for _, f := range s.Faults {
		shown = append(shown, f.Line)
	}
	if fmt.Sprint(shown) != "[1 4 6 8 11]" || !errors.Is(s.Faults[0].Err, errTooLong) || !errors.Is(s.Faults[2].Err, errTooLong) || !errors.Is(s.Faults[3].Err, errTooLong) {
		t.Errorf("faults are %v", s.Faults)
	}
}

func TestFormatsAreToldFromTheFirstLines(t *testing.T) {
	common := `10.0.0.1 - - [29/Nov/2026:00:00:03 +0000] "GET / HTTP/1.1" 200 0`
	envoyLine := `[2026-04-15T20:17:00.310Z] "GET / HTTP/1.1" 200 - 0 0 0 - "-" "-" "-" "-" "-"`
	for name, tc := range map[string]struct {
		text string
		o    Options
		want string // the format, or what an error says
	}{
		"combined":                      {combinedLine(1), Options{}, "combined"},
		"common":                        {common, Options{}, "common"},
		"both":                          {combinedLine(1) + "\n" + common + "\n" + combinedLine(1), Options{}, "combined"},
		"Envoy":                         {envoyLine, Options{}, "envoy"},
		"JSON":                          {`{"time":"2026-11-29T00:00:03Z","path":"/"}`, Options{}, "json"},
		"after junk":                    {"starting\n\nx\n{}\n" + envoyLine, Options{}, "envoy"},
		"by name":                       {combinedLine(1), Options{Format: Common}, "common"},
		"by a mapping":                  {`{"a":"2026-11-29T00:00:03Z"}`, Options{Mapping: Mapping{{attribute: attrTime, path: "a"}}}, "json"},
		"a mapping of what":             {common, Options{Format: Common, Mapping: Mapping{}}, "a mapping is for"},
		"no such format":                {common, Options{Format: "clf"}, "combined, common, envoy, json"},
		"unknown":                       {"hello\nworld", Options{}, `the first line is "hello"`},
		"JSON of other names":           {`{"when":1}`, Options{}, "--map"},
		"a trace":                       {`{"at":"0s"}`, Options{}, "--trace"},
		"JSON after a banner":           {"hi\n" + `{"time":"2026-11-29T00:00:03Z","path":"/"}`, Options{}, "json"},
		"JSON of other things first":    {`{"level":"info","ts":1795910403,"msg":"serving"}` + "\n" + `{"ts":1795910403,"request":{"uri":"/"}}`, Options{}, "json"},
		"after a line that is too long": {strings.Repeat("y", 2*blockSize) + "\n" + combinedLine(1), Options{}, "combined"},
		"after many empty lines":        {strings.Repeat("\n", 2*blockSize) + combinedLine(1), Options{}, "combined"},
		"only a line that is too long":  {strings.Repeat("y", 2*blockSize), Options{}, "no line"},
		"empty":                         {"", Options{}, "no line"},
		"only ends":                     {"\n\r\n", Options{}, "no line"},
		"not gzip":                      {"\x1f\x8b", Options{}, "inflate"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := NewReader(strings.NewReader(tc.text), tc.o)
			if err == nil && string(r.Format()) != tc.want || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, %v; want %s", r, err, tc.want)
			}
		})
	}
}

func TestErrorsOfReadingComeAfterWhatWasRead(t *testing.T) {
	text := strings.Repeat(combinedLine(1)+"\n", 10_000)
	cut := compressed(text)
	for name, in := range map[string]io.Reader{
		"gzip that is cut": strings.NewReader(cut[:len(cut)-20]),
		"a failing disk":   io.MultiReader(strings.NewReader(text), iotest.ErrReader(errors.New("input/output error"))),
	} {
		t.Run(name, func(t *testing.T) {
			entries, _, err := readAll(in, Options{})
			if err == nil || len(entries) < 9000 {
				t.Errorf("%d entries, %v", len(entries), err)
			}
		})
	}
}

func TestBatchesEndWithTheirContextAndTheirConsumer(t *testing.T) {
	log := func() *Reader {
		r, err := NewReader(strings.NewReader(strings.Repeat(combinedLine(1)+"\n", 10_000)), Options{})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var last error
	for _, err := range log().Batches(ctx) {
		last = err
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("ended with %v", last)
	}
	next, stop := iter.Pull2(log().Batches(t.Context()))
	if entries, err, ok := next(); len(entries) == 0 || err != nil || !ok {
		t.Errorf("the first batch has %d entries: %v", len(entries), err)
	}
	stop()
}

// Texts of an entry stay when its batch is used again.
func TestTextsOutliveTheirBatch(t *testing.T) {
	var log strings.Builder
	for i := range 10_000 { // more blocks than batches
		log.WriteString(combinedLine(i) + "\n")
	}
	r, err := NewReader(strings.NewReader(log.String()), Options{})
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for batch, err := range r.Batches(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		for i := range batch {
			paths = append(paths, batch[i].Request.Path)
		}
	}
	for i, path := range paths {
		if path != fmt.Sprintf("/v1/orders/%d", i) {
			t.Fatalf("path %d is %q", i, path)
		}
	}
}

func BenchmarkCombined(b *testing.B) { benchmark(b, combinedLine(12345)) }

func BenchmarkJSON(b *testing.B) {
	benchmark(b, `{"level":"info","ts":1795910403.25,"logger":"http.log.access","request":{"remote_ip":"127.0.0.1","remote_port":"41342","client_ip":"127.0.0.1","proto":"HTTP/2.0","method":"GET","host":"localhost","uri":"/v1/orders/1","headers":{"User-Agent":["curl/7.82.0"],"Accept":["*/*"]}},"bytes_read":0,"duration":0.000929675,"size":10900,"status":200}`)
}

// benchmark reads a log of b.N such lines.
func benchmark(b *testing.B, line string) {
	b.ReportAllocs()
	b.SetBytes(int64(len(line) + 1))
	r, err := NewReader(io.LimitReader(&repeated{line: line + "\n"}, int64(b.N*(len(line)+1))), Options{})
	if err != nil {
		b.Fatal(err)
	}
	for _, err := range r.Batches(b.Context()) {
		if err != nil {
			b.Fatal(err)
		}
	}
	if n := r.Stats().Requests; n != int64(b.N) {
		b.Fatalf("read %d requests of %d", n, b.N)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "lines/s")
}

// repeated is a line again and again.
type repeated struct {
	line string
	at   int
}

func (r *repeated) Read(p []byte) (n int, err error) {
	for n < len(p) {
		copied := copy(p[n:], r.line[r.at:])
		n, r.at = n+copied, (r.at+copied)%len(r.line)
	}
	return n, nil
}
