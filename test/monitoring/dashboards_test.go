package monitoring

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// dashboard is what matters here of Grafana's.
type dashboard struct {
	UID, Title, Description string
	SchemaVersion           int
	Panels                  []panel
	Templating              struct{ List []variable }
}

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ H, W, X, Y int }
	Datasource               struct{ UID string }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []struct{ RefID, Expr string }
}

type variable struct{ Name, Type, Definition string }

func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "dashboards", "*.json"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("found %d dashboards, %v", len(paths), err)
	}
	all := map[string]dashboard{}
	for _, path := range paths {
		var d dashboard
		if err := json.Unmarshal([]byte(read(t, filepath.Join("dashboards", filepath.Base(path)))), &d); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all[filepath.Base(path)] = d
	}
	return all
}

// plain is an expression with Grafana's durations put in.
func plain(expr string) string { return strings.ReplaceAll(expr, "$__rate_interval", "5m") }

func TestDashboardsAskForMetricsThatThereAre(t *testing.T) {
	r := readReference(t)
	for name, d := range dashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				if err := r.check(plain(target.Expr)); err != nil {
					t.Errorf("%s: %s: %v", name, p.Title, err)
				}
			}
		}
		for _, v := range d.Templating.List {
			if v.Type != "query" {
				continue
			}
			parts := regexp.MustCompile(`^label_values\((.+), (\w+)\)$`).FindStringSubmatch(v.Definition)
			if parts == nil {
				t.Errorf("%s: the variable %s is not made of label values: %s", name, v.Name, v.Definition)
			} else if err := r.check("sum by (" + parts[2] + ") (" + parts[1] + ")"); err != nil {
				t.Errorf("%s: the variable %s: %v", name, v.Name, err)
			}
		}
	}
}

// There is no Grafana here to load them: this is what one would stumble over.
func TestDashboardsAreWhole(t *testing.T) {
	uids := map[string]bool{}
	for name, d := range dashboards(t) {
		if d.UID == "" || uids[d.UID] || d.Title == "" || d.Description == "" || d.SchemaVersion == 0 {
			t.Errorf("%s lacks a uid of its own, a title, a description or a schema's version", name)
		}
		uids[d.UID] = true
		var variables []string
		for _, v := range d.Templating.List {
			variables = append(variables, v.Name)
		}
		ids := map[int]bool{}
		for i, p := range d.Panels {
			if ids[p.ID] {
				t.Errorf("%s: two panels have the id %d", name, p.ID)
			}
			ids[p.ID] = true
			checkPanel(t, name, p, variables)
			for _, q := range d.Panels[:i] {
				if overlap(p, q) {
					t.Errorf("%s: %s lies on %s", name, p.Title, q.Title)
				}
			}
		}
	}
}

func checkPanel(t *testing.T, name string, p panel, variables []string) {
	t.Helper()
	if p.GridPos.W == 0 || p.GridPos.H == 0 || p.GridPos.X+p.GridPos.W > 24 {
		t.Errorf("%s: %s is out of the grid", name, p.Title)
	}
	if p.Type == "row" {
		return
	}
	if p.Title == "" || p.Description == "" || len(p.Targets) == 0 || p.FieldConfig.Defaults.Unit == "" || p.Datasource.UID != "${datasource}" {
		t.Errorf("%s: %q lacks a description, a question, a unit or the data source that is chosen", name, p.Title)
	}
	var refs []string
	for _, target := range p.Targets {
		if slices.Contains(refs, target.RefID) {
			t.Errorf("%s: %s asks twice as %s", name, p.Title, target.RefID)
		}
		refs = append(refs, target.RefID)
		for _, used := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(plain(target.Expr), -1) {
			if !slices.Contains(variables, used[1]) {
				t.Errorf("%s: %s uses the variable %s, which there is not", name, p.Title, used[1])
			}
		}
	}
}

func overlap(p, q panel) bool {
	a, b := p.GridPos, q.GridPos
	return a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H
}
