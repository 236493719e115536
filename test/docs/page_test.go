package docs

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAPageIsTakenApart(t *testing.T) {
	p := parse("page.md", "# A `title`, with [a link](other.md#part)\n\n"+
		"Text with `[no](link)` and ![a picture](a.svg).\n\n"+
		"    kubectl get pods \\\n      --all-namespaces\n\n"+
		"    not a program\n\n"+
		"- In a list:\n\n      make test\n\n"+
		"## A title\n## A title\n"+
		"```sh\n# no heading\necho\n```\n"+
		"  ```console\n  $ one \\\n      two\n  three\n  $ four\n  ```\n"+
		"```yaml policy\nkind: A\n```\n")

	if diff := cmp.Diff(map[string]bool{"a-title-with-a-link": true, "a-title": true, "a-title-1": true}, p.anchors); diff != "" {
		t.Errorf("anchors (-want +got):\n%s", diff)
	}
	var targets, scripts []string
	for _, l := range p.links {
		targets = append(targets, l.target)
	}
	for _, b := range p.blocks {
		if script, ok := b.script(); ok {
			scripts = append(scripts, script)
		}
	}
	if diff := cmp.Diff([]string{"other.md#part", "a.svg"}, targets); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	want := []string{
		"kubectl get pods \\\n  --all-namespaces\n", "make test\n", "# no heading\necho\n", "one \\\n    two\nfour\n",
	}
	if diff := cmp.Diff(want, scripts); diff != "" {
		t.Errorf("scripts (-want +got):\n%s", diff)
	}
}
