package replica

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/eventually"
	"github.com/kvatlas/kvatlas/internal/must"
	"github.com/kvatlas/kvatlas/internal/redistest"
	"github.com/kvatlas/kvatlas/store"
)

// TestUsers follows an index as the users that are documented. One that may write switches the log on, one that
// may not follows it, and nothing is refused.
func TestUsers(t *testing.T) {
	s := redistest.Start(t)
	plain := s.Client()
	for _, mark := range []string{"acl", "acl-replica"} {
		for _, words := range redistest.DocumentedACL(t, "../../docs/operations.md", mark) {
			redistest.Do(t, plain, words...)
		}
	}
	reader := openReplica(t, "redis://kvatlas-reader:READER_PASSWORD@"+s.Addr, "kva")
	eventually.NoError(t, "the reader says why it cannot", func() error {
		if err := reader.Ready(); err == nil || !strings.Contains(err.Error(), "changelog --on") {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	plain.Do(t.Context(), "ACL", "LOG", "RESET")
	writer := openReplica(t, "redis://kvatlas-writer:WRITER_PASSWORD@"+s.Addr, "kva")
	keys := keysOf(1, 100)
	write(t, writer, "a", store.Add, keys...)
	write(t, writer, "b", store.Add, keys[:50]...)
	same(t, writer, writer.Index, keys...)
	eventually.NoError(t, "the reader follows", reader.Ready)
	same(t, reader, writer.Index, keys...)
	plain.Do(t.Context(), "ACL", "LOG", "RESET") // what the reader was refused in between
	write(t, writer, "a", store.Remove, keys[20:]...)
	must.Get(writer.Retire(t.Context(), "b"))(t)
	for _, r := range []*Replica{reader, writer} {
		same(t, r, writer.Index, keys...)
	}
	if refused := plain.Do(t.Context(), "ACL", "LOG").Val(); fmt.Sprint(refused) != "[]" {
		t.Errorf("refused: %v", refused)
	}
}
