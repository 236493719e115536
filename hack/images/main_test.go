package main

import (
	"archive/tar"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// forRegistry are options with programs that say for which architecture they are, and
// a registry to push to.
func forRegistry(t *testing.T) options {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	o := options{
		bin: t.TempDir(), prefix: strings.TrimPrefix(server.URL, "http://") + "/tallyman", tag: "v0.1.0", revision: "abc",
		archs: []string{"amd64", "arm64"}, created: time.Unix(1_800_000_000, 0).UTC(), push: true,
	}
	for _, arch := range o.archs {
		dir := filepath.Join(o.bin, "linux-"+arch)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "manager"), []byte("for "+arch), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func TestEachPlatformPullsItsOwnProgram(t *testing.T) {
	o := forRegistry(t)
	if err := o.make("manager"); err != nil {
		t.Fatal(err)
	}
	for _, arch := range o.archs {
		image, err := remote.Image(reference(t, o), remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Architecture != arch || config.Config.Labels["org.opencontainers.image.version"] != o.tag {
			t.Errorf("the image for %s says %+v", arch, config)
		}
		if got := content(t, image); got != "program -rwxr-xr-x for "+arch {
			t.Errorf("the image for %s has %s", arch, got)
		}
	}
}

func reference(t *testing.T, o options) name.Reference {
	t.Helper()
	ref, err := name.ParseReference(o.prefix + "/manager:" + o.tag)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// content is the one file of an image.
func content(t *testing.T, image v1.Image) string {
	t.Helper()
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("the image has %d layers: %v", len(layers), err)
	}
	packed, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	r := tar.NewReader(packed)
	header, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("there is more in it: %v", err)
	}
	return header.Name + " " + header.FileInfo().Mode().String() + " " + string(text)
}

func TestTheSameProgramsComeToTheSameImages(t *testing.T) {
	var digests [2]v1.Hash
	for i := range digests {
		index, err := forRegistry(t).index("manager")
		if err != nil {
			t.Fatal(err)
		}
		if digests[i], err = index.Digest(); err != nil {
			t.Fatal(err)
		}
	}
	if digests[0] != digests[1] {
		t.Errorf("the same programs come to %v", digests)
	}
}

func TestAnArchiveHasTheIndex(t *testing.T) {
	o := forRegistry(t)
	o.archive, o.push = t.TempDir(), false
	if err := o.make("manager"); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(filepath.Join(o.archive, "manager.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	dir := t.TempDir()
	unpack(t, file, dir)
	want, err := o.index("manager")
	if err != nil {
		t.Fatal(err)
	}
	digest, err := want.Digest()
	if err != nil {
		t.Fatal(err)
	}
	all, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := all.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 || manifest.Manifests[0].Digest != digest {
		t.Errorf("the archive has %+v, not %s: %v", manifest, digest, err)
	}
	if _, err := all.ImageIndex(digest); err != nil {
		t.Error(err)
	}
}

func unpack(t *testing.T, file io.Reader, dir string) {
	t.Helper()
	for r := tar.NewReader(file); ; {
		header, err := r.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.FromSlash(header.Name))
		if header.FileInfo().IsDir() {
			continue
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAProgramThatIsNotBuiltIsTold(t *testing.T) {
	o := forRegistry(t)
	if err := o.make("sidecar"); err == nil || !strings.Contains(err.Error(), "make linux ARCH=amd64") {
		t.Errorf("the error does not say what to do: %v", err)
	}
}

func TestTheDockerfileSaysTheSame(t *testing.T) {
	text, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	wants := []string{"USER 65532:65532", `ENTRYPOINT ["/program"]`, "${PROGRAM} /program"}
	for label := range (options{}).labels("") {
		wants = append(wants, label+"=")
	}
	for _, want := range wants {
		if !strings.Contains(string(text), want) {
			t.Errorf("the Dockerfile does not have %s", want)
		}
	}
}
