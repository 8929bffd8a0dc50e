package servercheck

import (
	"fmt"
	"strings"

	"github.com/kvatlas/kvatlas/check"
)

// Names are the names of all findings about an index in Redis, in the order in which they are reported. Those
// of the connection, the data model, the registry and a cluster are for the index's owner.
var Names = []string{
	"connection", "version", "access", "memory limit", "eviction policy", "memory of a block", "persistence", "replication",
	"round trip", "clock", "clients", "output buffers", "background work", "keys", "information", "data model", "registry", "cluster",
}

// Merge joins the findings about single servers. What is the same everywhere is
// said once.
func Merge(looks []*Look) []check.Finding {
	var out []check.Finding
	where := map[check.Finding][]string{}
	for _, l := range looks {
		for _, f := range l.Findings {
			if where[f] == nil {
				out = append(out, f)
			}
			where[f] = append(where[f], l.Addr)
		}
	}
	for i, f := range out {
		if at := where[f]; len(at) < len(looks) {
			out[i].Where = strings.Join(at, ", ")
		}
	}
	return out
}

// Count is a number of things, in words.
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
