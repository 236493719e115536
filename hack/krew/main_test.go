package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"
)

// manifest is what krew reads.
type manifest struct {
	APIVersion string
	Kind       string
	Metadata   struct{ Name string }
	Spec       struct {
		Version, Homepage, ShortDescription, Description, Caveats string

		Platforms []struct {
			Selector         struct{ MatchLabels map[string]string }
			URI, SHA256, Bin string
		}
	}
}

func TestTheManifestLeadsToTheArchives(t *testing.T) {
	t.Chdir("../..")
	out := t.TempDir()
	r := release{Version: "v1.2.3", BaseURL: "https://example.com/dl"}
	for _, p := range platforms {
		a, err := writeArchive(out, r.Version, p, []byte("the program for "+p.OS))
		if err != nil {
			t.Fatal(err)
		}
		r.Archives = append(r.Archives, a)
	}
	text, err := r.manifest()
	if err != nil {
		t.Fatal(err)
	}
	var m manifest
	if err := yaml.UnmarshalStrict(text, &m); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	if m.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || m.Kind != "Plugin" || m.Metadata.Name != "tallyman" ||
		m.Spec.Version != "v1.2.3" || len(m.Spec.ShortDescription) > 50 || len(m.Spec.Platforms) != len(platforms) {
		t.Errorf("the manifest is\n%s", text)
	}
	for i, p := range m.Spec.Platforms {
		name := filepath.Base(p.URI)
		if p.URI != "https://example.com/dl/"+name || p.Selector.MatchLabels["os"] != platforms[i].OS || p.Selector.MatchLabels["arch"] != platforms[i].Arch {
			t.Errorf("platform %+v", p)
		}
		data, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != p.SHA256 {
			t.Errorf("%s has another checksum than %s", name, p.SHA256)
		}
		files := unpack(t, data)
		if string(files[p.Bin]) != "the program for "+platforms[i].OS || len(files["LICENSE"]) == 0 || len(files["kubectl_complete-tallyman"]) == 0 {
			t.Errorf("%s has %d files, and not those that it should have", name, len(files))
		}
	}
}

func unpack(t *testing.T, data []byte) map[string][]byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAVersionIsOneThatKrewTakes(t *testing.T) {
	for _, version := range []string{"", "1.2.3", "v1.2", "v1.2.3 ", "v1.2.3+build", "../v1.2.3"} {
		if err := run(version, "", t.TempDir()); err == nil {
			t.Errorf("%q is taken", version)
		}
	}
}
