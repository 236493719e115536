package limiter

import (
	"fmt"
	"sync"
	"testing"
)

func (t *leaseTable) size() int { return len(t.all()) }

// clear is a crash: what is at hand is forgotten.
func (t *leaseTable) clear() {
	for _, e := range t.all() {
		t.remove(e)
	}
}

func TestLeaseTableFindsWhatIsThere(t *testing.T) {
	table := newLeaseTable()
	const keys = 3 * leasePlaces // chains have several
	all := make([]*lease, keys)
	for i := range all {
		all[i] = newLease(fmt.Sprint(i), 0)
		if has, added := table.add(all[i]); has != all[i] || !added {
			t.Fatalf("key %d was there before it came", i)
		}
	}
	if has, added := table.add(newLease("7", 0)); has != all[7] || added {
		t.Fatal("a key has two leases")
	}
	for i := 0; i < keys; i += 2 {
		table.remove(all[i])
		table.remove(all[i])
	}
	diff(t, "left", table.size(), keys/2)
	for i, e := range all {
		if i%2 == 0 {
			e = nil
		}
		if found := table.load(fmt.Sprint(i)); found != e {
			t.Fatalf("key %d: %v", i, found)
		}
	}
}

func TestLeaseTableIsReadWhileItChanges(t *testing.T) {
	table := newLeaseTable()
	stays := newLease("stays", 0)
	table.add(stays)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 2000 {
				e, _ := table.add(newLease(fmt.Sprint(i%50, w%2), 0))
				if table.load("stays") != stays {
					t.Error("a lease that is there is not found")
				}
				table.remove(e)
			}
		})
	}
	wg.Wait()
	diff(t, "left", table.size(), 1)
}
