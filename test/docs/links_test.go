package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// pages are all files of Markdown in the repository, in the order of their names.
func pages(t *testing.T) []*page {
	t.Helper()
	var all []*page
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "bin" || entry.Name() == "dist" || entry.Name() == "testdata"):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		all = append(all, parse(filepath.ToSlash(name), string(text)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Links to files, and to headings of pages, lead somewhere. Those to other hosts are
// not followed.
func TestLinksLeadSomewhere(t *testing.T) {
	all := pages(t)
	byName := map[string]*page{}
	for _, p := range all {
		byName[p.name] = p
	}
	for _, p := range all {
		for _, l := range p.links {
			if strings.Contains(l.target, ":") {
				continue
			}
			file, anchor, anchored := strings.Cut(l.target, "#")
			name := p.name
			if file != "" {
				name = filepath.ToSlash(filepath.Join(filepath.Dir(p.name), file))
			}
			if _, err := os.Stat(filepath.Join(root, name)); err != nil {
				t.Errorf("%s:%d: %s leads to no file", p.name, l.line, l.target)
				continue
			}
			if to := byName[name]; anchored && (to == nil || !to.anchors[anchor]) {
				t.Errorf("%s:%d: %s has no heading for %s", p.name, l.line, name, l.target)
			}
		}
	}
}

// Who looks for something begins at the index.
func TestTheIndexHasAllPages(t *testing.T) {
	all := pages(t)
	listed := map[string]bool{}
	for _, p := range all {
		for _, l := range p.links {
			if p.name == index {
				listed[filepath.ToSlash(filepath.Join("docs", l.target))] = true
			}
		}
	}
	for _, p := range all {
		if strings.HasPrefix(p.name, "docs/") && !strings.HasPrefix(p.name, "docs/adr/") && p.name != index && !listed[p.name] {
			t.Errorf("%s does not lead to %s: add it, below the question that it answers", index, p.name)
		}
	}
}

const index = "docs/README.md"
