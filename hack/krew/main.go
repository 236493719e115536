// Command krew builds the archives of the kubectl plugin for all platforms, and the
// manifest by which krew (https://krew.sigs.k8s.io) installs them. The same sources
// give the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"text/template"
)

//go:embed tallyman.yaml.tmpl
var manifestText string

var manifestTemplate = template.Must(template.New("tallyman.yaml").Parse(manifestText))

// platform is one that Go builds for.
type platform struct{ OS, Arch string }

var platforms = []platform{
	{"darwin", "amd64"}, {"darwin", "arm64"},
	{"linux", "amd64"}, {"linux", "arm64"},
	{"windows", "amd64"}, {"windows", "arm64"},
}

// bin is the program's name in an archive.
func (p platform) bin() string {
	if p.OS == "windows" {
		return "kubectl-tallyman.exe"
	}
	return "kubectl-tallyman"
}

// file is one in an archive.
type file struct {
	name string
	data []byte
	mode int64
}

// archive is one that was made.
type archive struct {
	platform
	Name, Bin, SHA256 string
}

// release is what the manifest is made from.
type release struct {
	Version, BaseURL string
	Archives         []archive
}

// versionForm is what krew takes for one.
var versionForm = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)

func main() {
	version := flag.String("version", "v0.0.0", "the release's `version`, such as v0.1.0")
	baseURL := flag.String("base-url", "", "`URL` of the directory with the archives (default: the release's on GitHub)")
	out := flag.String("out", "dist", "`directory` to write to")
	flag.Parse()
	if err := run(*version, *baseURL, *out); err != nil {
		fmt.Fprintln(os.Stderr, "plugin-archives:", err)
		os.Exit(1)
	}
}

func run(version, baseURL, out string) error {
	if !versionForm.MatchString(version) {
		return fmt.Errorf("version is %q: write one such as v0.1.0", version)
	}
	if baseURL == "" {
		baseURL = "https://github.com/tallyman-dev/tallyman/releases/download/" + version
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	r := release{Version: version, BaseURL: baseURL}
	for _, p := range platforms {
		program, err := build(p)
		if err != nil {
			return err
		}
		a, err := writeArchive(out, version, p, program)
		if err != nil {
			return err
		}
		fmt.Println("plugin-archives:", filepath.Join(out, a.Name))
		r.Archives = append(r.Archives, a)
	}
	manifest, err := r.manifest()
	if err != nil {
		return err
	}
	path := filepath.Join(out, "tallyman.yaml")
	fmt.Println("plugin-archives:", path)
	return os.WriteFile(path, manifest, 0o644)
}

// build is the program for a platform.
func build(p platform) ([]byte, error) {
	directory, err := os.MkdirTemp("", "tallyman-krew-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(directory)
	path := filepath.Join(directory, p.bin())
	c := exec.Command("go", "build", "-trimpath", "-tags=grpcnotrace", "-ldflags=-s -w", "-o", path, "./cmd/kubectl-tallyman")
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.OS, "GOARCH="+p.Arch)
	c.Stderr = os.Stderr
	if err := c.Run(); err != nil {
		return nil, fmt.Errorf("build for %s/%s: %w", p.OS, p.Arch, err)
	}
	return os.ReadFile(path)
}

func writeArchive(out, version string, p platform, program []byte) (archive, error) {
	a := archive{platform: p, Bin: p.bin(), Name: fmt.Sprintf("kubectl-tallyman_%s_%s_%s.tar.gz", version, p.OS, p.Arch)}
	files := []file{{p.bin(), program, 0o755}}
	for _, f := range []file{{name: "LICENSE", mode: 0o644}, {name: "hack/krew/kubectl_complete-tallyman", mode: 0o755}} {
		data, err := os.ReadFile(f.name)
		if err != nil {
			return a, err
		}
		files = append(files, file{filepath.Base(f.name), data, f.mode})
	}
	data, err := pack(files)
	if err != nil {
		return a, err
	}
	sum := sha256.Sum256(data)
	a.SHA256 = hex.EncodeToString(sum[:])
	return a, os.WriteFile(filepath.Join(out, a.Name), data, 0o644)
}

// pack makes a tar.gz without times and owners.
func pack(files []file) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	t := tar.NewWriter(z)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), Format: tar.FormatUSTAR}
		if err := t.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := t.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func (r *release) manifest() ([]byte, error) {
	var b bytes.Buffer
	err := manifestTemplate.Execute(&b, r)
	return b.Bytes(), err
}
