package controller

import (
	"sync"

	"github.com/tallyman-dev/tallyman/internal/compile"
)

// compilers has one for each namespace with policies, so that an edit of one policy
// does not have all others compiled again. It is safe for concurrent use; each compiler
// is used by the one reconcile of its namespace.
type compilers struct {
	mu sync.Mutex
	by map[Namespace]*compile.Compiler
}

// of is the compiler of a namespace with so many policies. Without any it is forgotten.
func (c *compilers) of(ns Namespace, policies int) *compile.Compiler {
	c.mu.Lock()
	defer c.mu.Unlock()
	if policies == 0 {
		delete(c.by, ns)
		return &compile.Compiler{}
	}
	if c.by == nil {
		c.by = map[Namespace]*compile.Compiler{}
	}
	if c.by[ns] == nil {
		c.by[ns] = &compile.Compiler{}
	}
	return c.by[ns]
}
