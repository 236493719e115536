package replay

// Row is what a limit would have done on each side.
type Row struct {
	Name string
	// Shadow says that the limit refuses nothing, on one side at least.
	Shadow bool
	// Counts of each side, nil for one that does not have the limit.
	Counts []*Counts
}

// Rows are the limits of all results by name, and then all of them together.
func (r *Report) Rows() []Row {
	var rows []Row
	index := map[string]int{}
	for i := range r.Results {
		for j := range r.Results[i].Limits {
			l := &r.Results[i].Limits[j]
			at, known := index[l.Name]
			if !known {
				at = len(rows)
				index[l.Name] = at
				rows = append(rows, Row{Name: l.Name, Counts: make([]*Counts, len(r.Results))})
			}
			rows[at].Counts[i] = &l.Counts
			rows[at].Shadow = rows[at].Shadow || l.Shadow
		}
	}
	total := Row{Name: "all together"}
	for i := range r.Results {
		total.Counts = append(total.Counts, &r.Results[i].Counts)
	}
	return append(rows, total)
}
