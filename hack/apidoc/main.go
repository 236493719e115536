// Command apidoc writes the reference of the API, docs/api.md, out of CRDs: each
// field with its type, default, bounds, rules and description. What the API server
// checks is thereby what the reference says.
//
//	go run ./hack/apidoc config/crd/bases/*.yaml > docs/api.md
package main

import (
	"bufio"
	"fmt"
	"os"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "apidoc:", err)
		os.Exit(1)
	}
}

func run(files []string) error {
	out := bufio.NewWriter(os.Stdout)
	fmt.Fprint(out, intro)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		for i := range crd.Spec.Versions {
			writeVersion(out, &crd, &crd.Spec.Versions[i])
		}
	}
	return out.Flush()
}
