package match

import (
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// lookup finds values by name.
type lookup interface {
	get(name string) (value string, present bool)
	// names are sorted, so that an expression over them has one result. They
	// are collected once for a request: an expression may ask in a loop.
	names() []string
}

// headerLookup finds headers by names in any case and lists them in lower
// case, without copying them.
type headerLookup struct{ r *Request }

func (h headerLookup) get(name string) (string, bool) {
	return h.r.firstHeader(http.CanonicalHeaderKey(name))
}

func (h headerLookup) names() []string {
	if h.r.cachedHeaderNames == nil {
		h.r.cachedHeaderNames = headerNames(h.r)
	}
	return h.r.cachedHeaderNames
}

func headerNames(r *Request) []string {
	names := make([]string, 0, len(r.Header)+1)
	for name := range r.Header {
		names = append(names, strings.ToLower(name))
	}
	if r.Host != "" {
		names = append(names, "host")
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (v *values) get(name string) (string, bool) {
	value, present := v.first[name]
	return value, present
}

func (v *values) names() []string {
	if v.cachedNames == nil {
		v.cachedNames = slices.Sorted(maps.Keys(v.first))
	}
	return v.cachedNames
}

// stringMap is a CEL map(string, string) where a missing name has the value
// "", so that a comparison with an optional header needs no test for its
// presence. The in operator and has() tell presence.
//
// It is no traits.Mapper: a Mapper's Find answers has() and the index operator
// alike, and could not tell them apart.
type stringMap struct{ lookup }

var _ interface {
	ref.Val
	traits.Container
	traits.FieldTester
	traits.Indexer
	traits.Iterable
	traits.Sizer
} = stringMap{}

// Get implements traits.Indexer.
func (m stringMap) Get(name ref.Val) ref.Val {
	key, ok := name.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(name)
	}
	value, _ := m.get(string(key))
	return text(value)
}

// Contains implements traits.Container, the in operator.
func (m stringMap) Contains(name ref.Val) ref.Val {
	key, ok := name.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(name)
	}
	_, present := m.get(string(key))
	return types.Bool(present)
}

// IsSet implements traits.FieldTester, the has() macro.
func (m stringMap) IsSet(name ref.Val) ref.Val { return m.Contains(name) }

// Size implements traits.Sizer.
func (m stringMap) Size() ref.Val { return types.Int(len(m.names())) }

// Iterator implements traits.Iterable.
func (m stringMap) Iterator() traits.Iterator {
	return types.NewStringList(types.DefaultTypeAdapter, m.names()).Iterator()
}

// Equal implements ref.Val. The compiler refuses to compare whole maps
// (noMapEquality); this is for values that have become dyn.
func (m stringMap) Equal(ref.Val) ref.Val {
	return types.NewErr("maps of a request cannot be compared")
}

// ConvertToNative implements ref.Val.
func (m stringMap) ConvertToNative(to reflect.Type) (any, error) {
	return nil, fmt.Errorf("a map of a request cannot become %v", to)
}

// ConvertToType implements ref.Val.
func (m stringMap) ConvertToType(to ref.Type) ref.Val {
	switch to {
	case types.MapType:
		return m
	case types.TypeType:
		return types.MapType
	}
	return types.NewErr("a map of a request cannot become %s", to.TypeName())
}

// Type implements ref.Val.
func (m stringMap) Type() ref.Type { return types.MapType }

// Value implements ref.Val.
func (m stringMap) Value() any { return m.lookup }
