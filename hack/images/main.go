// Command images makes the images of the programs in bin/linux-ARCH for several
// architectures at a time, without docker: an image is a program, so there is nothing
// to run. The same programs come to the same bytes.
//
//	go run . -prefix registry.example.com/tallyman -tag v0.1.0 -push manager sidecar
//
// It has to agree with the Dockerfile.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

type options struct {
	bin, prefix, tag, revision string
	archs                      []string
	created                    time.Time
	archive                    string
	push                       bool
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "../../bin", "`directory` that has the programs, in linux-ARCH")
	flag.StringVar(&o.prefix, "prefix", "tallyman", "what comes before the programs' names")
	flag.StringVar(&o.tag, "tag", "dev", "the images' tag, and version")
	flag.StringVar(&o.revision, "revision", "", "the commit that they are built of")
	archs := flag.String("archs", "amd64,arm64", "the architectures")
	epoch := flag.Int64("epoch", 0, "when they were made, in seconds of Unix time")
	flag.StringVar(&o.archive, "archive", "", "`directory` to write an OCI archive of each image into")
	flag.BoolVar(&o.push, "push", false, "push the images, with the credentials of docker login")
	flag.Parse()
	o.archs, o.created = strings.Split(*archs, ","), time.Unix(*epoch, 0).UTC()
	for _, program := range flag.Args() {
		if err := o.make(program); err != nil {
			fmt.Fprintln(os.Stderr, "images:", err)
			os.Exit(1)
		}
	}
}

// make makes the image of one program, and brings it to where it is wanted.
func (o options) make(program string) error {
	ref, err := name.NewTag(o.prefix + "/" + program + ":" + o.tag)
	if err != nil {
		return err
	}
	index, err := o.index(program)
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	if o.archive != "" {
		if err := archive(index, ref, filepath.Join(o.archive, program+".tar")); err != nil {
			return fmt.Errorf("write the archive of %s: %w", program, err)
		}
	}
	if o.push {
		if err := remote.WriteIndex(ref, index, remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return fmt.Errorf("push %s: %w", ref, err)
		}
	}
	fmt.Printf("images: %s@%s\n", ref, digest)
	return nil
}

// index is a program's images for all architectures.
func (o options) index(program string) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range o.archs {
		image, err := o.image(program, arch)
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return index, nil
}

func (o options) image(program, arch string) (v1.Image, error) {
	content, err := os.ReadFile(filepath.Join(o.bin, "linux-"+arch, program))
	if err != nil {
		return nil, fmt.Errorf("read what make linux ARCH=%s builds: %w", arch, err)
	}
	packed, err := pack(content, o.created)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(packed)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	config := &v1.ConfigFile{
		OS: "linux", Architecture: arch, Created: v1.Time{Time: o.created},
		Config: v1.Config{User: "65532:65532", Entrypoint: []string{"/program"}, Labels: o.labels(program)},
		RootFS: v1.RootFS{Type: "layers"},
	}
	image, err := mutate.ConfigFile(mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1), config)
	if err != nil {
		return nil, err
	}
	return mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: o.created}, CreatedBy: "COPY program /program"}})
}

func (o options) labels(program string) map[string]string {
	const l = "org.opencontainers.image."
	return map[string]string{
		l + "title": "tallyman " + program, l + "version": o.tag, l + "revision": o.revision,
		l + "licenses": "Apache-2.0", l + "source": "https://github.com/tallyman-dev/tallyman",
	}
}

// pack is a tar with the program.
func pack(program []byte, created time.Time) ([]byte, error) {
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	header := &tar.Header{Name: "program", Mode: 0o755, Size: int64(len(program)), ModTime: created}
	if err := w.WriteHeader(header); err != nil {
		return nil, err
	}
	if _, err := w.Write(program); err != nil {
		return nil, err
	}
	return packed.Bytes(), w.Close()
}

// archive writes a tar that skopeo, podman and ctr know as an OCI archive.
func archive(index v1.ImageIndex, ref name.Tag, path string) (err error) {
	dir, err := os.MkdirTemp("", "image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	into, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	names := map[string]string{
		"org.opencontainers.image.ref.name": ref.TagStr(),
		// By which the kubelet looks for it.
		"io.containerd.image.name": strings.Replace(ref.Name(), name.DefaultRegistry+"/", "docker.io/", 1),
	}
	if err := into.AppendIndex(index, layout.WithAnnotations(names)); err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	w := tar.NewWriter(file)
	return errors.Join(w.AddFS(os.DirFS(dir)), w.Close(), file.Close())
}
